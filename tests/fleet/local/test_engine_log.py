"""An engine's log says how far a start has come and why it failed."""

import pytest

from phasewise.fleet.local.member import informative_line, rejects_command, stage_after
from phasewise.fleet.local.state import ProcessStage

LOADING = "(EngineCore pid=9213) INFO 11-15 00:22:43 [cpu_model_runner.py:68] Starting to load model /m..."
LOADED = "(EngineCore pid=9213) INFO 11-15 00:22:44 [default_loader.py:501] Loading weights took 0.53 seconds"


def test_stages_follow_the_log():
    stages = [ProcessStage.STARTING]
    for line in ("something else", LOADING, LOADED):
        stages.append(stage_after(line, stages[-1]))
    assert stages == [
        ProcessStage.STARTING,
        ProcessStage.STARTING,
        ProcessStage.LOADING,
        ProcessStage.WARMING_UP,
    ]


@pytest.mark.parametrize("stage", [ProcessStage.READY, ProcessStage.STOPPING, ProcessStage.WARMING_UP])
def test_an_early_line_takes_no_later_stage_back(stage):
    assert stage_after(LOADING, stage) is stage


def test_wrong_argument_is_quoted():
    lines = ["usage: main.py [-h]", "main.py: error: unrecognized arguments: --bogus 1"]
    assert informative_line(lines) == "main.py: error: unrecognized arguments: --bogus 1"
    assert rejects_command(lines)


def test_cause_is_quoted_rather_than_its_echo_in_the_front_end():
    lines = [
        "(EngineCore pid=1) ERROR 11-15 00:33:23 [core.py:1510]     raise ValueError(",
        "(EngineCore pid=1) ERROR 11-15 00:33:23 [core.py:1510] ValueError: No memory for the cache.",
        "Traceback (most recent call last):",
        "    raise RuntimeError(",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert informative_line(lines) == "ValueError: No memory for the cache."
    assert not rejects_command(lines)


def test_reason_inside_a_validation_error_is_quoted():
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, User-specified max_model_len (99999) is greater than derived [type=value_error]",
        "    For further information visit the documentation",
    ]
    assert informative_line(lines).startswith("Value error, User-specified max_model_len (99999)")


def test_without_an_error_the_last_words_are_quoted():
    assert informative_line(["INFO 11-15 00:22:43 [a.py:1] fine", "Killed", ""]) == "Killed"
    assert informative_line([]) is None


def test_llama_cpps_own_words_are_quoted():
    lines = [
        "0.00.008.956 I srv          init: loading model",
        "0.00.009.642 E cmn  common_init_: failed to load model '/m.gguf'",
        "0.00.012.207 E srv          init: exiting due to model loading error",
        "RuntimeError: Failed to init server, please check the input params.",
    ]
    assert stage_after(lines[0], ProcessStage.STARTING) is ProcessStage.LOADING
    assert informative_line(lines).endswith("failed to load model '/m.gguf'")

from __future__ import annotations

import json

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.launch import EngineSize, own_context_tokens, size_here
from phasewise.fleet.config import Levers
from phasewise.fleet.local.placement import Machine

CPU, GPU = Machine("cpu", (0, 1, 2)), Machine("cuda", (0, 1), (0, 1))


def test_a_long_context_is_capped_and_a_short_one_kept_unless_one_is_asked_for():
    assert size_here(EngineSize(), CPU, 131_072) == EngineSize(cores=1, context_tokens=8192)
    assert size_here(EngineSize(), CPU, 4096).context_tokens == 4096
    assert size_here(EngineSize(), CPU, None).context_tokens is None
    assert size_here(EngineSize(context_tokens=32_768), CPU, 131_072).context_tokens == 32_768


def test_an_engine_has_one_core_or_gpu_unless_more_are_asked_for():
    assert size_here(EngineSize(), GPU, None) == EngineSize(gpus=1)
    assert size_here(EngineSize(gpus=2), GPU, None).gpus == 2
    assert size_here(EngineSize(cores=3), CPU, None).cores == 3


@pytest.mark.parametrize(
    ("asked", "machine", "complaint"),
    [
        (EngineSize(cores=4), CPU, "4 cores were requested, but this machine has 3"),
        (EngineSize(gpus=3), GPU, "3 GPUs were requested, but this machine has 2"),
        (EngineSize(gpus=1), CPU, "--gpus is given, but the engine is built for cpu"),
        (EngineSize(cores=1), GPU, "--cores is given, but the engine is built for cuda"),
        (EngineSize(kv_cache_memory_bytes="2 gigs"), CPU, "'2 gigs' is not a size"),
    ],
)
def test_what_the_machine_has_not_is_rejected_before_anything_starts(asked, machine, complaint):
    with pytest.raises(ConfigError, match=complaint) as rejected:
        size_here(asked, machine, None)
    assert rejected.value.hint


def test_an_engine_keeps_what_its_case_sets():
    size = EngineSize(kv_cache_memory_bytes="2GiB", context_tokens=4096)
    assert size.given_to(Levers(prefix_cache=True)) == Levers(
        prefix_cache=True, kv_cache_memory_bytes="2GiB", max_model_len=4096
    )
    assert size.given_to(Levers(kv_cache_memory_bytes="512MiB")).kv_cache_memory_bytes == "512MiB"


@pytest.mark.parametrize(
    "config", [{"max_position_embeddings": 2048}, {"text_config": {"max_position_embeddings": 2048}}]
)
def test_a_model_says_its_own_context(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert own_context_tokens(str(tmp_path), tmp_path, {}) == 2048


def test_a_model_that_is_not_here_says_nothing(tmp_path):
    assert own_context_tokens("someone/something", tmp_path, {"HF_HOME": str(tmp_path)}) is None

"""`phasewise model sheet` and `levers`: what they read, print and reject."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, PhasewiseError
from tests.paths import ROOT

EXAMPLES = ROOT / "examples" / "models"
LLAMA_70B = str(EXAMPLES / "llama-3-70b.json")
OWN = ("--gpu", "custom", "--peak-tflops", "0.2", "--bandwidth-gbs", "20", "--memory-gb", "24")
RUNNER = CliRunner()


def run(*arguments):
    return RUNNER.invoke(app, ["model", "sheet", *arguments])


def printed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout


def rejected(*arguments):
    result = run(*arguments)
    assert isinstance(result.exception, PhasewiseError)
    assert result.exception.hint
    return result.exception


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_every_example_has_a_sheet(config):
    page = printed(str(config), "--gpus", "1")
    assert "modelled, not measured" in page
    assert all(len(line) <= 80 for line in page.splitlines())


def test_a_page_names_every_assumption_and_source():
    page = printed(LLAMA_70B)
    assert "compute       0.55" in page
    assert "NVIDIA H100 data sheet" in page
    assert "assumption" in page


def test_an_assumption_can_be_changed():
    facts = json.loads(printed(LLAMA_70B, "--gpus", "8", "--assume", "compute=1", "--json"))
    assert facts["assumptions"]["compute"] == 1.0
    assert facts["facts"]["ridge"]["value"] == pytest.approx(989.4e12 / (3.35e12 * 0.75))


def test_a_price_can_be_changed():
    free = json.loads(printed(LLAMA_70B, "--gpus", "8", "--price-per-hour", "1", "--json"))
    assert free["facts"]["replica_per_hour"]["value"] == 8.0
    assert free["sources"]["price_per_hour"] == "--price-per-hour"


def test_targets_and_a_rate_give_replicas():
    options = ("--gpus", "8", "--slo", "ttft=1s,tpot=50ms", "--rate", "30", "--json")
    facts = json.loads(printed(LLAMA_70B, *options))["facts"]
    assert facts["devices"]["value"] == 8 * facts["replicas"]["value"]
    assert facts["tpot_s"]["value"] <= 0.05


def test_a_folder_with_a_configuration_will_do(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(Path(LLAMA_70B).read_text())
    assert printed(str(folder)).startswith("my-model on 1 x")
    assert printed(str(folder / "config.json")).startswith("my-model on 1 x")


def test_a_configuration_in_the_hub_s_cache_is_found(tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(Path(LLAMA_70B).read_text())
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert printed("org/name").startswith("name on 1 x")


def test_a_hub_id_that_is_not_here_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert "hf download org/name config.json" in rejected("org/name").hint


def test_a_machine_of_one_s_own_has_the_figures_that_are_given():
    small = str(EXAMPLES / "llama-3-8b.json")
    facts = json.loads(printed(small, *OWN, "--weights", "w4a16", "--json"))
    assert facts["facts"]["decode_weights_s"]["value"] > 0.2
    assert "per_million_input" not in facts["facts"]
    priced = json.loads(
        printed(small, *OWN, "--price-per-hour", "2", "--slo", "ttft=1000s,tpot=10s", "--json")
    )
    assert priced["facts"]["replica_per_hour"]["value"] == 2.0


def test_a_machine_without_units_for_8_bit_says_that_w8a8_saves_reads_only():
    small = str(EXAMPLES / "llama-3-8b.json")
    words = "w8a8 only saves reads"
    assert words in " ".join(printed(small, *OWN).split())
    faster = (*OWN, "--peak-8bit-tflops", "0.4")
    assert words not in " ".join(printed(small, *faster).split())
    assert json.loads(printed(small, *faster, "--json"))["levers"][0]["ttft"] < 0.6


def test_what_vllm_takes_by_default_depends_on_the_device():
    small = str(EXAMPLES / "llama-3-8b.json")
    facts = json.loads(printed(small, "--gpu", "A100", "--json"))["facts"]
    assert (facts["chunk_tokens"]["value"], facts["max_num_seqs"]["value"]) == (2048, 256)
    options = ("--gpu", "A100", "--chunk-tokens", "4096", "--max-num-seqs", "64", "--json")
    facts = json.loads(printed(small, *options))["facts"]
    assert (facts["chunk_tokens"]["value"], facts["max_num_seqs"]["value"]) == (4096, 64)


def test_a_model_for_very_short_contexts_has_a_page(tmp_path):
    config = json.loads((EXAMPLES / "llama-3-8b.json").read_text()) | {"max_position_embeddings": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "more than the model supports" in printed(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--gpu", "H1000"), "H1000"),
        (("--gpu", "custom"), "custom device"),
        ((*OWN, "--gpus", "2"), "link"),
        (("--peak-tflops", "1"), "figures are built in"),
        (("--assume", "compute"), "NAME=VALUE"),
        (("--assume", "speed=2"), "speed"),
        (("--cached-tokens", "2000"), "has to be less than"),
        (("--gpus", "3"), "cannot be divided"),
        (("--rate", "0"), "--rate"),
        (("--rate", "nan"), "--rate is nan"),
        (("--rate", "inf"), "--rate is inf"),
        (("--price-per-hour", "inf"), "--price-per-hour"),
        (("--assume", "overhead_ms=nan"), "overhead_ms is nan"),
        ((*OWN, "--gpus", "2", "--link-gbs", "-5"), "--link-gbs is -5"),
        ((*OWN, "--peak-8bit-tflops", "nan"), "--peak-8bit-tflops"),
        (("--peak-8bit-tflops", "1"), "figures are built in"),
        (("--slo", "tpt=1s"), "tpt"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_rejected_in_words(arguments, named):
    assert named in rejected(LLAMA_70B, *arguments).message


@pytest.mark.parametrize(("content", "named"), [("[]", "not a JSON object"), ("{", "cannot be read")])
def test_a_file_that_is_no_configuration_is_rejected(tmp_path, content, named):
    broken = tmp_path / "config.json"
    broken.write_text(content)
    error = rejected(str(broken))
    assert isinstance(error, ConfigError)
    assert named in error.message


def test_every_field_for_programs_is_documented():
    page = (ROOT / "docs" / "reference" / "model-sheet.md").read_text()
    whole = json.loads(printed(LLAMA_70B, "--gpus", "8", "--rate", "30", "--json"))
    routed = json.loads(printed(str(EXAMPLES / "mixtral-8x7b.json"), "--gpus", "8", "--json"))
    rows = [*whole["kv_cache"][0], *whole["prefill"][0], *whole["decode"][0], *whole["levers"][0]]
    names = {*whole, *whole["facts"], *routed["facts"], *whole["accelerator"], *whole["assumptions"], *rows}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def levers(*options):
    return RUNNER.invoke(app, ["levers", *options], env={"COLUMNS": "80"})


def test_the_table_of_levers_says_which_lever_helps_which_phase_and_why_in_80_columns():
    result = levers(str(ROOT / "examples" / "models" / "llama-3-8b.json"))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for lever in ("larger batch", "continuous batching", "FlashAttention", "chunked prefill", "GQA, MQA"):
        assert lever in result.stdout
    assert "llama-3-8b on 1 x H100" in result.stdout


def test_the_table_of_levers_is_there_for_programs_and_its_fields_are_documented():
    facts = json.loads(levers("--json").stdout)
    by_name = {it["lever"]: it for it in facts["levers"]}
    assert by_name["prefix caching"]["helps_prefill"] == "yes"
    assert by_name["prefix caching"]["helps_decode"] == "no"
    assert by_name["chunked prefill"]["helps_prefill"] == "costs"
    page = (ROOT / "docs" / "explanation" / "levers.md").read_text()
    assert [name for name in (*facts, *facts["levers"][0]) if f"`{name}`" not in page] == []


def test_levers_on_a_device_need_a_model():
    assert "phasewise levers MODEL" in levers("--gpu", "A100").exception.hint


def test_the_table_of_levers_in_the_docs_is_what_the_command_shows():
    columns = ("helps_prefill", "helps_decode", "why", "modelled")
    rows = [
        f"| **{lever['lever']}** | {' | '.join(lever[column] for column in columns)} |\n"
        for lever in json.loads(levers("--json").stdout)["levers"]
    ]
    assert len(rows) > 10
    assert "".join(rows) in (ROOT / "docs" / "explanation" / "levers.md").read_text()

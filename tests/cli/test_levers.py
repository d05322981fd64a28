"""`phasewise levers` in front of a person, on fake engines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.cli import levers as command
from phasewise.cli import levers_measure as measuring
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, MeasurementError
from phasewise.experiments.lever_runs.engines import RunningEngine
from phasewise.experiments.levers import guide
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.loadgen.session import measure
from phasewise.loadgen.statistics import window as validity
from tests.experiments.levers.builders import EQUAL_ANSWERS, make_case, make_row, make_workload
from tests.fake_engine_thread import running_fake_engine
from tests.paths import ROOT

CASES = (
    make_case("first", rows=(make_row(make_workload("few tokens")),)),
    make_case("second", rows=(make_row(make_workload("more tokens", output=5)),)),
)


@pytest.fixture
def stopped():
    """Which engines were stopped."""
    return []


@pytest.fixture
def launched():
    """What launchers were made of."""
    return []


@pytest.fixture(autouse=True)
def fake_fleets(monkeypatch, tmp_path, stopped, launched):
    """Fake engines in the place of fleets; nothing is void and no answers are read."""

    class Launcher:
        def __init__(self, *settings):
            launched.append(settings)

        @asynccontextmanager
        async def launch(self, spec):
            engine = FakeEngine(FakeEngineConfig())
            await engine.start()
            try:
                yield RunningEngine(spec, engine.base_url)
            finally:
                await engine.stop()
                stopped.append(spec.name)

    async def equal(self, case, off_url, on_url, effort):
        return EQUAL_ANSWERS

    engine = EngineEnvironment(Path("python"), "0.32.0", "cpu", None, nixl=False)
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "CASES", CASES)
    monkeypatch.setattr(measuring, "FleetLauncher", Launcher)
    monkeypatch.setattr(command.engine_size, "current_engine", lambda chosen: engine)
    monkeypatch.setattr(measuring, "resolve_model", lambda model, home: model)
    monkeypatch.setattr(measuring.OutputReader, "compare", equal)
    monkeypatch.setattr(command, "QUICK", command.replace(command.QUICK, block_s=0.01))
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def run(*options):
    return CliRunner().invoke(app, ["levers", "--measure", "--quick", *options])


@pytest.fixture
def greeting(monkeypatch):
    """What a command says of what is left to do, without doing it."""

    async def nothing(*settings):
        return False

    def greet(*options):
        with monkeypatch.context() as patch:
            patch.setattr(measuring, "_measure", nothing)
            return run(*options).stderr

    return greet


def test_the_list_needs_no_engine(monkeypatch):
    monkeypatch.setattr(
        command.engine_size, "current_engine", lambda chosen: pytest.fail("nothing is to be measured")
    )
    result = run("--list")
    assert result.exit_code == 0
    assert "the first" in result.stdout
    assert "the second" in result.stdout


def test_the_list_is_there_for_programs_and_its_fields_are_documented():
    listing = json.loads(run("--list", "--json").stdout)
    assert [case["case"] for case in listing["cases"]] == ["first", "second"]
    (row,) = listing["cases"][0]["rows"]
    assert row["traffic"] == "few tokens"
    page = (ROOT / "docs" / "reference" / "levers.md").read_text()
    assert [name for name in (*listing, *listing["cases"][0], *row) if f"`{name}`" not in page] == []


def test_every_engine_gets_the_size_that_was_asked_for_and_results_of_sizes_do_not_mix(launched, greeting):
    size = ("--kv-cache-memory-bytes", "2GiB", "--context", "4096")
    result = run("--only", "first", *size, "--json")
    assert result.exit_code == 0, result.output
    asked = {"cores": 1, "gpus": None, "kv_cache_memory_bytes": "2GiB", "context_tokens": 4096}
    assert json.loads(result.stdout)["circumstances"]["engine"] == asked
    assert launched[-1][-1].model_dump() == asked
    assert "0 rows to measure" in greeting("--only", "first", *size)
    assert "1 rows to measure" in greeting("--only", "first")


def test_results_of_a_model_whose_files_changed_do_not_mix(tmp_path, greeting):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 131072}')
    (folder / "model.safetensors").write_bytes(b"weights")
    options = ("--only", "first", "--model", str(folder))
    assert json.loads(run(*options, "--json").stdout)["circumstances"]["engine"]["context_tokens"] == 8192
    assert "0 rows to measure" in greeting(*options)
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert "1 rows to measure" in greeting(*options)


def test_longer_blocks_are_measured_again(monkeypatch, greeting):
    assert run("--only", "first").exit_code == 0
    monkeypatch.setattr(command, "QUICK", command.replace(command.QUICK, block_s=0.02))
    assert "1 rows to measure" in greeting("--only", "first")


def test_a_size_that_the_engine_cannot_have_is_rejected_before_anything_starts(stopped):
    result = run("--gpus", "1")
    assert isinstance(result.exception, ConfigError)
    assert "--cores" in result.exception.hint
    assert stopped == []


def test_an_unknown_lever_is_rejected_before_anything_starts():
    result = run("--only", "warp")
    assert isinstance(result.exception, ConfigError)
    assert "first, second" in result.exception.hint


def test_every_row_is_measured_and_written_in_every_form(tmp_path, stopped):
    page, document = tmp_path / "levers.html", tmp_path / "levers.md"
    result = run("--json", "--html", str(page), "--markdown", str(document))
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert [row["case"] for row in facts["rows"]] == ["first", "second"]
    assert all(row["effects"] and row["outputs"]["equal"] == 12 for row in facts["rows"])
    assert {*facts["noise_floor"]} == {"few tokens"}
    assert "the first" in page.read_text()
    assert "the first" in document.read_text()
    assert "2 rows to measure, about " in result.stderr
    assert {*stopped} == {"base", "lever"}


@pytest.fixture
def interrupt(monkeypatch):
    """Sends a signal when the second lever is measured, as long as the context lasts."""

    @contextmanager
    def interrupting(sent):
        async def interrupted(url, spec, label, interrupts):
            if "second" in label:
                os.kill(os.getpid(), sent)
                await asyncio.sleep(10)
            return await measure(url, spec)

        with monkeypatch.context() as patch:
            patch.setattr(measuring, "measure_with_view", interrupted)
            yield

    return interrupting


def test_a_ctrl_c_keeps_what_is_measured_and_the_same_command_goes_on(interrupt, stopped):
    with interrupt(signal.SIGINT):
        result = run()
    assert result.exit_code == 130
    assert "the same command continues from here" in result.stderr
    assert result.stdout.count("KV capacity same; answers: 12/12 equal") == 1
    assert {*stopped} == {"base", "lever"}
    resumed = run()
    assert resumed.exit_code == 0, resumed.output
    assert "1 of 2 rows are done" in resumed.stderr


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_or_a_closed_terminal_leaves_no_engine_behind(interrupt, stopped, sent):
    with interrupt(sent):
        assert run("--only", "second").exit_code == 130
    assert {*stopped} == {"base", "lever"}


def test_again_forgets_the_chosen_levers_and_keeps_the_others(greeting):
    assert run().exit_code == 0
    assert "1 rows to measure" in greeting("--again", "--only", "first")
    assert "1 of 2 rows are done" in greeting()
    assert "2 rows to measure" in greeting("--again")


def test_what_was_measured_again_before_a_ctrl_c_is_gone_on_with_without_again(interrupt, greeting):
    with interrupt(signal.SIGINT):
        stopped = run("--again")
    assert stopped.exit_code == 130
    assert "the same command without --again continues from here" in stopped.stderr
    assert "1 of 2 rows are done" in greeting()


# --- The table, which needs no engine.


def show(*options):
    return CliRunner().invoke(app, ["levers", *options], env={"COLUMNS": "80"})


@pytest.fixture
def _no_engine(monkeypatch):
    monkeypatch.setattr(
        command.engine_size, "current_engine", lambda chosen: pytest.fail("nothing is to be measured")
    )


@pytest.mark.usefixtures("_no_engine")
def test_the_table_says_which_lever_helps_which_phase_and_why_in_80_columns():
    result = show("--model", str(ROOT / "examples" / "models" / "llama-3-8b.json"))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for lever in ("larger batch", "continuous batching", "FlashAttention", "chunked prefill", "GQA, MQA"):
        assert lever in result.stdout
    assert "llama-3-8b on 1 x H100" in result.stdout
    assert "nothing yet with this model" in result.stdout


@pytest.mark.usefixtures("_no_engine")
def test_the_table_is_there_for_programs_and_its_fields_are_documented():
    facts = json.loads(show("--json").stdout)
    by_name = {it["lever"]: it for it in facts["levers"]}
    assert by_name["prefix caching"]["helps_prefill"] == "yes"
    assert by_name["prefix caching"]["helps_decode"] == "no"
    assert by_name["chunked prefill"]["helps_prefill"] == "costs"
    page = (ROOT / "docs" / "reference" / "levers.md").read_text()
    assert [name for name in (*facts, *facts["levers"][0]) if f"`{name}`" not in page] == []


def test_what_was_measured_here_stands_beside_what_is_modelled(monkeypatch):
    assert run("--only", "first").exit_code == 0
    lever = guide.GuideLever("the first", guide.Helps.YES, guide.Helps.NO, "it is there", ("first",))
    monkeypatch.setattr(guide, "GUIDE", (lever,))
    monkeypatch.setattr(guide, "CASES", CASES)
    monkeypatch.setattr(guide, "modelled_on", lambda case, deployment: "as fast")
    (row,) = json.loads(show("--json").stdout)["levers"]
    assert row["measured"]


@pytest.mark.usefixtures("_no_engine")
def test_an_option_of_measurements_without_them_says_what_to_add():
    result = show("--quick")
    assert isinstance(result.exception, ConfigError)
    assert "--measure" in result.exception.hint


@pytest.mark.usefixtures("_no_engine")
def test_a_device_needs_a_model():
    assert "--model" in show("--gpu", "A100").exception.hint


@pytest.mark.usefixtures("_no_engine")
def test_the_page_in_the_docs_is_what_the_command_writes(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    assert show("--markdown", str(page)).exit_code == 0
    published = (ROOT / "docs" / "levers-by-phase.md").read_text()
    assert page.read_text().splitlines()[4:] == published.splitlines()[4:]


def test_the_tour_predicts_before_it_measures_and_draws_a_page(tmp_path):
    page = tmp_path / "tour.html"
    with running_fake_engine(FakeEngineConfig()) as engine:
        result = show("--tour", engine.base_url, "--html", str(page))
    assert result.exit_code == 0, result.output
    for number in range(1, 6):
        _, _, said = result.stdout.partition(f"\nrun {number} of 5: ")
        assert said.index("predicted") < said.index("measured")
    assert "predictions held" in page.read_text()
    assert "predictions held" in result.stdout


@pytest.mark.usefixtures("_no_engine")
def test_a_tour_whose_engine_fails_says_so_and_draws_nothing(tmp_path):
    page = tmp_path / "tour.html"
    with running_fake_engine(FakeEngineConfig(faults=(Fault(FaultKind.DIE, after_tokens=10),))) as engine:
        result = show("--tour", engine.base_url, "--html", str(page))
    assert isinstance(result.exception, MeasurementError)
    assert "3 of 3 requests" in str(result.exception)
    assert not page.exists()


@pytest.mark.usefixtures("_no_engine")
def test_a_target_without_the_tour_says_what_to_add():
    assert "--tour" in show("http://127.0.0.1:1").exception.hint

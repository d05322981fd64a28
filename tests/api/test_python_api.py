"""`import phasewise`: what a script may use, what it gets back, and what it is told when that fails."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import phasewise
from phasewise.benchmark.statistics import window as validity
from phasewise.cli.app import app
from phasewise.fake_engine.engine import FakeEngineConfig
from tests.fake_engine_thread import running_fake_engines
from tests.paths import ROOT

EXAMPLE = ROOT / "examples" / "measure_and_judge.py"
MODEL = str(ROOT / "examples" / "models" / "llama-3-8b.json")
SMALL = {"requests": 6, "prompt_tokens": 40, "output_tokens": 4, "seed": 3}
SMALL_OPTIONS = ["--requests", "6", "--prompt-tokens", "40", "--output-tokens", "4", "--seed", "3"]
COMMANDS = {
    "bench": (phasewise.bench, ["bench"]),
    "compare": (phasewise.compare, ["compare"]),
    "diagnose": (phasewise.diagnose, ["diagnose"]),
    "model_sheet": (phasewise.model_sheet, ["model", "sheet"]),
}
FOR_TERMINALS = {
    "--json", "--html", "--timelines", "--save-traffic", "--save-evidence", "--exit-zero",
    "--sweep", "--find-max-rate", "--attainment", "--set", "--fix", "--history", "--ledger",
}  # fmt: skip
"""Outputs, the modes of `bench` that run several loads, and those of `compare` that start fleets."""


@pytest.fixture
def never_void(monkeypatch):
    """A busy machine may make the generator late; what is tried here are the calls."""
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def test_an_import_loads_nothing_until_a_name_is_used():
    script = (
        "import sys, phasewise\n"
        "loaded = {it.partition('.')[0] for it in sys.modules} & {'numpy', 'pydantic', 'rich', 'typer'}\n"
        "print(*loaded, *(it for it in sys.modules if it.startswith('phasewise')))\n"
        "phasewise.PhasewiseError\nprint('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["phasewise", "False"]


def test_the_public_names_are_these_and_all_can_be_used():
    functions, types = {"bench", "compare", "diagnose", "model_sheet"}, set(phasewise.__all__)
    types -= functions
    assert types == {"BenchResult", "ComparisonResult", "Diagnosis", "PhasewiseError", "Sheet"}
    assert all(callable(getattr(phasewise, name)) for name in functions | types)
    assert functions | types <= set(dir(phasewise))
    results = [getattr(phasewise, name) for name in sorted(types - {"PhasewiseError"})]
    assert all(is_dataclass(it) and it.__dataclass_params__.frozen for it in results)
    with pytest.raises(AttributeError, match="no attribute 'benhc'"):
        _ = phasewise.benhc


def options_of(command):
    """The options of a command by their names on the command line."""
    found = get_command(app)
    for name in command:
        found = found.get_command(None, name)
    params = [it for it in found.params if it.param_type_name == "option" and it.name != "help"]
    return {next(opt for opt in it.opts if opt.startswith("--")): it for it in params}


def keywords_of(function):
    """Keyword arguments under the names of the options."""
    found = inspect.signature(function).parameters.values()
    return {f"--{it.name.replace('_', '-')}": it for it in found if it.kind is it.KEYWORD_ONLY}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_takes_the_options_of_its_command_with_their_defaults(name):
    function, command = COMMANDS[name]
    options, keywords = options_of(command), keywords_of(function)
    left_out = FOR_TERMINALS | ({"--costs"} if name == "compare" else set())
    assert set(keywords) == set(options) - left_out
    for option, keyword in keywords.items():
        default = options[option].default
        assert keyword.default == (default if default != [] else None), option


def beyond(option):
    """Values just outside an option's range; typer keeps it in the option, or in its type."""
    at = option if hasattr(option, "min") else option.type
    if getattr(at, "min", None) is not None:
        yield at.min - 1
    if getattr(at, "max", None) is not None:
        yield at.max + 1


RANGES = [
    (name, option, bad)
    for name, (_, command) in COMMANDS.items()
    for option, it in options_of(command).items()
    for bad in beyond(it)
]


@pytest.mark.parametrize(("name", "option", "bad"), RANGES)
def test_a_value_that_the_command_line_rejects_is_rejected(name, option, bad):
    places = {"compare": ("http://127.0.0.1:9",) * 2, "model_sheet": (MODEL,)}.get(
        name, ("http://127.0.0.1:9",)
    )
    keyword = option.removeprefix("--").replace("-", "_")
    with pytest.raises(phasewise.PhasewiseError, match=option) as caught:
        COMMANDS[name][0](*places, **{keyword: bad})
    assert caught.value.hint


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: phasewise.bench("http://127.0.0.1:9", preset="chats"),
            "accepted: chat, rag, codegen, batch",
        ),
        (lambda: phasewise.bench("http://127.0.0.1:9", rate=1, concurrency=1), "give only one of them"),
        (lambda: phasewise.bench("http://127.0.0.1:9", requests=2, warm_up=2), "raise --requests"),
        (lambda: phasewise.bench("http://127.0.0.1:9", **SMALL), "hint: "),
        (lambda: phasewise.compare("http://127.0.0.1:9", "http://127.0.0.1:9", margin=2), "between 0 and 1"),
        (lambda: phasewise.diagnose("http://127.0.0.1:9"), "phasewise status"),
        (lambda: phasewise.diagnose("nowhere"), "give http://host:port"),
        (lambda: phasewise.model_sheet(MODEL, gpu="H1000"), "known: "),
        (lambda: phasewise.model_sheet(MODEL, assume={"speed": 2.0}), "hint: "),
    ],
)
def test_a_mistake_is_one_exception_with_the_words_and_the_hint_of_the_command(call, words):
    with pytest.raises(phasewise.PhasewiseError) as caught:
        call()
    assert words in str(caught.value)


def test_results_are_those_of_the_commands_and_nothing_is_printed(capfd, never_void):
    with running_fake_engines(2, FakeEngineConfig()) as (a, b):
        measured = phasewise.bench(a.base_url, diagnose=True, **SMALL)
        compared = phasewise.compare(a.base_url, b.base_url, pairs=4, control_pairs=0, **SMALL)
        judged = phasewise.diagnose(a.base_url, probe=True, steps_url=a.steps_url)
        sheet = phasewise.model_sheet(MODEL, gpus=2)
        assert capfd.readouterr() == ("", "")
        several = ["--pairs", "4", "--control-pairs", "0"]
        commands = (
            ["bench", a.base_url, "--diagnose", *SMALL_OPTIONS],
            ["compare", a.base_url, b.base_url, *several, *SMALL_OPTIONS],
            ["diagnose", a.base_url, "--probe", "--steps-url", a.steps_url],
            ["model", "sheet", MODEL, "--gpus", "2"],
        )
        printed = [json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout) for command in commands]
    ours = [json.loads(result.to_json()) for result in (measured, compared, judged, sheet)]
    assert [set(it) for it in ours] == [set(it) for it in printed]
    assert ours[3] == printed[3]
    assert measured.report.succeeded == printed[0]["succeeded"] == SMALL["requests"]
    assert (measured.seed, measured.load, compared.seed) == (3, printed[0]["load"], 3)
    assert 0 < measured.itl_s.p50 <= measured.ttft_s.max <= measured.e2e_s.max
    assert measured.tpot_s.p50 == measured.to_dict()["tpot_s"]["p50"]
    assert measured.diagnosis.to_dict()["verdict"] == measured.diagnosis.verdict
    assert compared.of("ttft_p50").verdict == ours[1]["verdicts"]["ttft_p50"]
    assert judged.sentence.startswith("SYNTHETIC PROBE: ")
    assert (judged.exit_code, judged.target) == (ours[2]["exit_code"], f"{a.base_url} (vLLM engine)")
    assert sheet.fact("kv_bytes_per_token").value == 131072


async def test_a_call_works_where_an_event_loop_runs_already():
    with running_fake_engines(1, FakeEngineConfig()) as (engine,):
        assert phasewise.bench(engine.base_url, **SMALL).report.succeeded == SMALL["requests"]


INTERRUPTED = """
import asyncio, sys, phasewise
phasewise.bench, phasewise.diagnose  # imports them
async def notebook():
    print("begins", flush=True)
    {call}
try:
    asyncio.run(notebook())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        ("print(phasewise.diagnose(sys.argv[1], window=600).verdict)", "not_enough_traffic"),
        ("phasewise.bench(sys.argv[1], rate=1, duration=600)", "interrupted"),
    ],
)
def test_ctrl_c_reaches_a_call_within_a_running_event_loop(call, printed):
    with running_fake_engines(1, FakeEngineConfig()) as (engine,):
        command = [sys.executable, "-c", INTERRUPTED.format(call=call), engine.base_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline() == "begins\n"
                time.sleep(4)
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=60)
            finally:
                process.kill()
    assert out == f"{printed}\n"


def test_the_example_asks_all_four_functions(never_void):
    with running_fake_engines(2, FakeEngineConfig()) as (a, b):
        options = ["--requests", "6", "--prompt-tokens", "40", "--output-tokens", "4", "--model", MODEL]
        command = [sys.executable, str(EXAMPLE), a.base_url, b.base_url, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("A: TTFT p50 0.")
    assert lines[1].startswith("B: TTFT p50 0.")
    assert lines[2].startswith("B against A: TTFT p50 ")
    assert lines[3].startswith("B: SYNTHETIC PROBE: ")
    assert lines[-1] == f"{MODEL}: 131 kB of KV cache per token"
    command[2] = "http://127.0.0.1:9"
    lost = subprocess.run(command, capture_output=True, text=True, check=False)
    assert lost.returncode == 2
    assert lost.stderr.startswith("error: ")


WRONG = """import phasewise
result: str = phasewise.bench("http://127.0.0.1:8000", preset=1).ttft_s.p50
phasewise.diagnose("http://127.0.0.1:8000", windows=3.0)
phasewise.compare("http://127.0.0.1:8000")
"""


def test_a_users_script_is_type_checked(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent"),
            *("--cache-dir", str(tmp_path / "cache"), str(EXAMPLE), str(wrong)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        cwd=tmp_path,
    )
    blamed = [Path(line.split(":")[0]).name for line in done.stdout.splitlines() if ": error: " in line]
    assert blamed == ["wrong.py"] * 4, done.stdout


@pytest.mark.real
def test_the_real_engine_is_measured_and_judged(real_engine):
    measured = phasewise.bench(
        real_engine.base_url, concurrency=2, requests=4, prompt_tokens=90, output_tokens=8, diagnose=True
    )
    assert (measured.report.succeeded, measured.report.model) == (4, real_engine.model)
    assert 0 < measured.ttft_s.p50 < measured.e2e_s.p50
    assert 0 < measured.itl_s.p50 < measured.e2e_s.p50
    assert measured.diagnosis.details.summary.engines
    judged = phasewise.diagnose(real_engine.base_url, probe=True, steps_url=real_engine.steps_url)
    assert judged.details.summary.start.step_timed > 0
    assert judged.to_dict()["verdict"] == judged.verdict

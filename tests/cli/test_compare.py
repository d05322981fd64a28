from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from signal import SIGINT
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from phasewise.benchmark import session
from phasewise.benchmark.compare.arms import UrlArm
from phasewise.benchmark.compare.compare import plan_comparison
from phasewise.benchmark.compare.verdict import METRICS
from phasewise.benchmark.statistics import window as validity
from phasewise.cli import measuring
from phasewise.cli.app import app
from phasewise.cli.compare import run_comparison
from phasewise.core.errors import ConfigError, EngineUnreachable, FleetError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from tests.benchmark.compare.test_compare import SPEC, Measuring

SMALL = ("--requests", "4", "--warm-up", "0", "--prompt-tokens", "40", "--output-tokens", "3", "--seed", "3")


@contextmanager
def fake_engines(*options: str) -> Iterator[tuple[str, str]]:
    fake = ("phasewise.cli", "engine", "fake", "--no-steps")
    command = [sys.executable, "-m", *fake, "--count", "2", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        # It says where the engines are once they listen.
        a, b = process.stdout.readline().strip(), process.stdout.readline().strip()
        assert a.startswith("http://127.0.0.1:"), a
        yield a, b
    finally:
        process.send_signal(SIGINT)
        process.communicate(timeout=300)


@pytest.fixture
def never_void(monkeypatch):
    """A busy machine may make the generator late; what is tried here are the steps of a comparison."""
    monkeypatch.setattr(validity, "_shown", lambda *lags: "")


def test_a_control_comes_first_and_every_metric_gets_a_verdict(never_void):
    with fake_engines("--jitter", "0.05") as (a, b):
        result = CliRunner().invoke(app, ["compare", a, b, *SMALL, "--max-pairs", "5", "--json"])
    facts = json.loads(result.stdout)
    assert facts["control"]["comparisons"][0]["pairs"] == 4
    assert 4 <= facts["pairs"] <= 5
    assert set(facts["verdicts"]) == {each["metric"]["name"] for each in facts["comparisons"]}
    assert set(facts["verdicts"].values()) <= {"better", "worse", "equivalent", "inconclusive", "unknown"}
    assert "control done: the noise requires" in result.stderr
    assert "pair 1/" in result.stderr or "measuring" in result.stderr


def test_the_result_for_people_names_both_arms(never_void, tmp_path):
    with fake_engines() as (a, b):
        options = ("--control-pairs", "0", "--pairs", "4", "--html", str(tmp_path / "page.html"))
        result = CliRunner().invoke(app, ["compare", a, b, *SMALL, *options])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"A {a}" in page
    assert page.count("<tr>") == 1 + len(METRICS)
    assert f"A  {a}" in result.stdout
    assert f"B  {b}" in result.stdout
    assert "Is B better than A?" in result.stdout
    assert "--seed 3 repeats these requests" in result.stdout


async def test_an_interrupt_after_the_last_reply_of_a_block_is_not_lost(monkeypatch):
    """The engine's record is read then, for as long as a small block takes."""
    measured = Measuring()

    async def measure(url, spec, on_start):
        stopped = asyncio.Event()
        on_start(SimpleNamespace(stop=stopped.set))
        if not measured.asked:
            os.kill(os.getpid(), SIGINT)
            await stopped.wait()
        return await measured(url, spec, "")

    monkeypatch.setattr(measuring, "measure", measure)
    plan = plan_comparison(SPEC, DEFAULT_SLO, control_pairs=0, pairs=4, warm_up=0)
    result = await run_comparison(UrlArm("http://a"), UrlArm("http://b"), plan)
    assert result.cut_short
    assert len(measured.asked) == 1


async def test_an_interrupt_before_a_block_begins_ends_the_comparison_at_once(monkeypatch):
    """A generator that does not run yet cannot be stopped: it would send the whole block."""

    @asynccontextmanager
    async def watching(target, steps_url):
        os.kill(os.getpid(), SIGINT)
        await asyncio.sleep(60)
        yield

    monkeypatch.setattr(session, "watching", watching)
    plan = plan_comparison(SPEC, DEFAULT_SLO, control_pairs=0, pairs=4, warm_up=0)
    async with running_engines(1, FakeEngineConfig()) as (engine,), asyncio.timeout(30):
        arm = UrlArm(engine.base_url)
        result = await run_comparison(arm, arm, plan)
    assert result.cut_short


def test_an_interrupt_reports_the_pairs_that_were_whole(tmp_path):
    with fake_engines("--preset", "cpu-demo") as (a, b):
        command = [sys.executable, "-m", "phasewise.cli", "compare", a, b, "--requests", "4", "--json"]
        options = ["--prompt-tokens", "40", "--output-tokens", "60", "--control-pairs", "0", "--pairs", "9"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # The first block's streams take over three seconds.
        wait_until_running(a)
        process.send_signal(SIGINT)
        out, complaint = process.communicate(timeout=300)
    assert process.returncode == 130, complaint
    facts = json.loads(out)
    assert facts["cut_short"]
    assert facts["pairs"] == 0
    assert set(facts["verdicts"].values()) == {"unknown"}


def wait_until_running(url: str) -> None:
    for _ in range(600):
        with urlopen(f"{url}/metrics") as reply:
            page = reply.read().decode()
        running = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
        if running and float(running[0].rsplit(" ", 1)[1]) > 0:
            return
        time.sleep(0.05)
    pytest.fail(f"{url} was never asked anything")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--warm-up", "24"], "lower --warm-up"),
        (["--margin", "0"], "both have to be between 0 and 1"),
        (["--rate", "1", "--concurrency", "2"], "give only one of them"),
    ],
)
def test_options_that_cannot_be_meant_are_rejected_before_anything_is_sent(options, complaint):
    result = CliRunner().invoke(app, ["compare", "http://127.0.0.1:9", "http://127.0.0.1:9", *options])
    assert isinstance(result.exception, ConfigError)
    assert complaint in str(result.exception)


def test_an_arm_that_is_down_is_one_sentence():
    result = CliRunner().invoke(app, ["compare", "http://127.0.0.1:9", "http://127.0.0.1:9"])
    assert isinstance(result.exception, EngineUnreachable)


def test_a_fleet_file_that_is_not_there_is_one_sentence(tmp_path):
    missing = str(tmp_path / "missing.yaml")
    result = CliRunner().invoke(app, ["compare", missing, missing])
    assert isinstance(result.exception, FleetError)
    assert "missing.yaml" in str(result.exception)

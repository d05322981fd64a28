"""`phasewise bench URL --diagnose`: the report, and why it is as it is."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from phasewise.benchmark import generator
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError

SMALL = ("--requests", "12", "--rate", "50", "--prompt-tokens", "60", "--output-tokens", "8", "--seed", "2")


def bench(engine, *options):
    return CliRunner().invoke(
        app, ["bench", engine.base_url, *SMALL, "--steps-url", engine.steps_url, "--diagnose", *options]
    )


def test_the_verdict_follows_the_report(fake_engine):
    done = bench(fake_engine)
    report, _, verdict = done.stdout.partition("--seed 2 repeats")
    assert "TTFT" in report
    assert "HEALTHY" in verdict
    assert "observed by the load generator" in " ".join(verdict.split())


def test_the_verdict_stands_in_the_json_beside_the_report(fake_engine):
    facts = json.loads(bench(fake_engine, "--json").stdout)
    assert facts["offered"] > 0
    assert facts["diagnosis"]["verdict"] == "healthy"
    assert facts["diagnosis"]["start"]["requests"] == 12


def test_the_page_shows_the_verdict_of_the_run(fake_engine, tmp_path):
    page, plain = tmp_path / "diagnosed.html", tmp_path / "plain.html"
    bench(fake_engine, "--html", str(page))
    CliRunner().invoke(app, ["bench", fake_engine.base_url, *SMALL, "--html", str(plain)])
    shown = page.read_text()
    assert shown.partition("<main>")[2].lstrip().startswith('<header class="strip healthy">')
    assert "<h1>HEALTHY</h1>" in shown
    assert "<strong>Synthetic load</strong>" in shown
    assert shown.index("Where the time went") < shown.index("What to do") < shown.index("Key figures")
    assert "<h2>What to do</h2>" in shown
    assert "<h2>Not observed</h2>" in shown
    assert "HEALTHY" not in plain.read_text()


def test_a_generator_that_sends_late_is_not_taken_for_a_slow_server(fake_engine, monkeypatch):
    async def late(due_s):
        await asyncio.sleep(0.3)

    monkeypatch.setattr(generator, "wait_until", late)
    facts = json.loads(bench(fake_engine, "--slo", "ttft=100ms", "--json").stdout)
    assert facts["void"]
    assert facts["diagnosis"]["cause"] == "generator_lag"


@pytest.mark.parametrize("other", [["--sweep", "rate=1,2"], ["--find-max-rate"]])
def test_one_load_is_diagnosed_at_a_time(fake_engine, other):
    options = ["bench", fake_engine.base_url, "--diagnose", *other]
    done = CliRunner().invoke(app, options)
    assert isinstance(done.exception, ConfigError)
    assert "with a single load" in done.exception.hint

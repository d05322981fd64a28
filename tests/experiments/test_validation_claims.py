"""Every claim follows from figures and can fail; a report is checked before it is published."""

from __future__ import annotations

import json
import time
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from phasewise.core.errors import ConfigError
from phasewise.experiments import validation_claims as claims
from phasewise.experiments.validation_claims import (
    CLAIMS,
    ClaimOutcome,
    StepResult,
    judge_claims,
    read_judged,
    read_report,
    report_json,
    without_names,
)
from phasewise.report.engine_view import markdown_row, render_validation
from tests.paths import ROOT

PUBLISHED = ROOT / "docs" / "validated" / "cpu-xeon-2026-11-17.json"
REPORT = read_judged(PUBLISHED.read_bytes(), PUBLISHED.name)
FIGURES = {result.step: result.figures for result in REPORT.steps}


def judged(step, **changes):
    """The outcomes of the claims of a step, with some figures changed."""
    results = judge_claims((StepResult(step=step, figures=FIGURES[step] | changes),))
    return [found.outcome for claim, found in zip(CLAIMS, results, strict=True) if claim.step == step]


@pytest.mark.parametrize(
    ("step", "changes", "outcomes"),
    [
        ("calibration", {"decode_error": 0.3}, ["does not hold", "holds", "holds"]),
        ("calibration", {"prefill_error": None}, ["holds", "inconclusive", "holds"]),
        ("calibration", {"form_fits": "no"}, ["holds", "holds", "does not hold"]),
        ("healthy", {"said": "slow_to_start"}, ["does not hold", "holds"]),
        ("healthy", {"said": "overload", "late_share": 0.4}, ["inconclusive", "holds"]),
        ("healthy", {"unexplained_ttft_share": 0.2, "unexplained_ttft_ms": 9.0}, ["holds", "holds"]),
        ("healthy", {"unexplained_ttft_share": 0.2, "unexplained_ttft_ms": 11.0}, ["holds", "does not hold"]),
        ("healthy", {"unexplained_ttft_ms": None}, ["holds", "not tried"]),
        ("long_prompts", {"said": "overload"}, ["does not hold"]),
        ("long_prompts", {"said": "healthy", "late_share": 0.1}, ["inconclusive"]),
        ("prefix_cache", {"low": 0.1, "high": 0.2}, ["does not hold"]),
        ("chunk_size", {"low": -0.1, "high": 0.2}, ["inconclusive"]),
        ("chunk_size", {"low": None, "high": None}, ["inconclusive"]),
    ],
)
def test_a_claim_can_fail_and_says_when_it_cannot_tell(step, changes, outcomes):
    assert judged(step, **changes) == outcomes


def test_a_step_that_was_not_done_gives_its_reason():
    (first, *_, last) = judge_claims((StepResult(step="calibration", why="no memory"),))
    assert (first.outcome, first.found) == (ClaimOutcome.NOT_TRIED, "no memory")
    assert (last.outcome, last.found) == (ClaimOutcome.NOT_TRIED, "it was left out of this run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it["claims"][0].update(outcome="does not hold"), "do not follow"),
        (lambda it: it["claims"].pop(), "do not follow"),
        (lambda it: it["steps"][0]["figures"].pop("steps"), "incomplete"),
        (lambda it: it.update(v=1), "no report of this version"),
        (lambda it: it.update(more=1), "no report of this version"),
        (lambda it: it["machine"].update(processor="a\nb"), "no report of this version"),
        (lambda it: it["machine"].update(processor="at /home/alice"), "holds an address or a path"),
    ],
)
def test_a_report_that_somebody_changed_is_rejected(change, message):
    document = json.loads(PUBLISHED.read_bytes())
    change(document)
    with pytest.raises(ConfigError, match=message):
        read_judged(json.dumps(document).encode(), "r.json")


@pytest.mark.parametrize("data", [b"no", b"[]", b"{" * 300_000])
def test_what_is_no_report_is_one_sentence(data):
    with pytest.raises(ConfigError):
        read_judged(data, "r.json")


def test_the_screen_begins_with_what_does_not_hold_and_markup_stays_text():
    machine = REPORT.machine | {"gpus": "<script>alert(1)</script>|[x](javascript:1)`**&amp;"}
    steps = tuple(
        step.model_copy(update={"figures": step.figures | {"decode_error": 0.4}})
        if step.step == "calibration"
        else step
        for step in REPORT.steps
    )
    update = {"machine": machine, "steps": steps, "claims": judge_claims(steps)}
    report = read_report(report_json(REPORT.model_copy(update=update)), "r.json")
    console = Console(width=100, record=True, file=StringIO())
    console.print(render_validation(report))
    screen = console.export_text()
    assert screen.index("DOES NOT HOLD") < screen.index("HOLDS  ")
    assert "9 holds, 1 does not hold" in screen
    row = markdown_row(report, "validated/r.json")
    assert row.replace("\\|", "").count("|") == 9
    assert "<script" not in row.replace("\\<", "")


@pytest.mark.parametrize(
    "secret",
    [
        "http://10.0.0.7:8000/v1", "/home/alice/models/llama", "~/models/x", "192.168.1.4:8000", "::1",
        "fe80::1ff:fe23:4567:890a", "gpu-box:8000", "alice@gpu-box.corp", "redis://:hunter2@cache",
    ],
)  # fmt: skip
def test_addresses_and_paths_are_taken_out(secret):
    assert without_names(f"engine at {secret} did not start") == "engine at (removed) did not start"


@pytest.mark.parametrize(
    "text",
    ["0.32.0+cpu", "535.104.05", "NVIDIA H100 80GB HBM3", "Qwen/Qwen2.5-1.5B-Instruct", "12 tokens/s",
     "TTFT -77% (-91 to -38%)", "docs/measured.md", "Intel(R) Xeon(R) CPU @ 2.20GHz"],
)  # fmt: skip
def test_ordinary_texts_stay(text):
    assert without_names(text) == text


def test_names_of_hosts_and_users_are_taken_out_as_words(monkeypatch):
    monkeypatch.setattr(claims.socket, "gethostname", lambda: "box-7.corp")
    monkeypatch.setattr(claims.getpass, "getuser", lambda: "alice")
    cleaned = without_names("Alice's engine on box-7.corp and BOX-7_gpu via\nmalice in alice-x")
    assert cleaned == "(removed)'s engine on (removed) and (removed)_gpu via malice in (removed)-x"


@given(st.text())
def test_cleaning_twice_changes_nothing_more(text):
    once = claims._cleaned(text)
    assert claims._cleaned(once) == once


@pytest.mark.parametrize("piece", ["/a", "a.", "1:", "a@", "a-", "http://", "1.1.", "::", "~/"])
def test_no_text_takes_long(piece):
    """Twice the text may take about twice the time; a quadratic pattern takes seconds for this one."""
    began_s = time.process_time()
    claims._cleaned(piece * 50_000)
    assert time.process_time() - began_s < 3.0

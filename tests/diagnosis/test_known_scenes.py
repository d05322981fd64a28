"""Verdicts on kept windows of the real engine stay right, and what is printed of them does not contradict
itself.
"""

import importlib
import re
import sys
from functools import cache
from html import unescape
from io import StringIO

import pytest
from rich.console import Console

from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle
from phasewise.diagnosis.verdict import Ruling
from phasewise.report.diagnosis.page import report_page
from phasewise.report.diagnosis.screen import show
from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
known_scenes = importlib.import_module("known_scenes")
KEPT = sorted(known_scenes.KEPT.glob("*.gz"))


@cache
def judged(name):
    observed, slo = read_bundle((known_scenes.KEPT / f"{name}.gz").read_bytes())
    evidence = evidence_of(observed)
    return diagnose(evidence, slo, Known()), evidence


def test_every_scene_is_kept_at_its_levels():
    wanted = {f"{scene.name}.{level}.gz" for scene in known_scenes.SCENES for level in scene.levels}
    assert {file.name for file in KEPT} == wanted


@pytest.mark.parametrize("name", [file.name.removesuffix(".gz") for file in KEPT])
def test_the_verdict_is_an_experts(name):
    scene_name, level = name.split(".")
    scene = next(scene for scene in known_scenes.SCENES if scene.name == scene_name)
    assert known_scenes.words_of(judged(name)[0]) in scene.expected(level)


def screen_of(verdict):
    out = StringIO()
    show(Console(file=out, width=200, no_color=True), verdict, "http://127.0.0.1:8000")
    return out.getvalue()


@pytest.mark.parametrize("name", [file.name.removesuffix(".gz") for file in KEPT])
def test_screen_and_page_agree_with_themselves(name):
    verdict, evidence = judged(name)
    screen, page = screen_of(verdict), report_page(verdict, evidence, "http://127.0.0.1:8000")
    headline = screen.splitlines()[0].partition(" (confidence")[0].partition(";")[0]
    assert headline in unescape(page)
    if verdict.summary.workload.requests:
        assert "no requests" not in screen
    if verdict.ruling is Ruling.HEALTHY:
        assert "What to do" not in screen
    # The bars of a phase are all of its latency: with what is not explained they make up a whole.
    for title in ("Time to first token", "Time per output token"):
        shares = shares_under(title, screen)
        assert not shares or 95 <= sum(shares) <= 105, shares
    recorded = any(engine.steps for engine in evidence.surroundings)
    assert recorded or not re.search(r"step record(?!er)", screen)


def shares_under(title, screen):
    """The shares of the bars under a title."""
    block = re.search(rf"^{title}.*?\n((?:  .*\n)*)", screen, re.M)
    return [] if block is None else [int(it) for it in re.findall(r"\s(-?\d+)%", bars_of(block[1]))]


def bars_of(block):
    return "\n".join(line for line in block.splitlines() if re.search(r"(ms|µs|s)\s+-?\d+%", line))

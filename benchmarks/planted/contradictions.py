"""Finds what the screen and the page of one verdict say against each other or against their evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from io import StringIO

from rich.console import Console

from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.report.diagnosis.page import report_page
from phasewise.report.diagnosis.screen import show

TARGET = "http://127.0.0.1:8000"
TITLES = ("Time to first token", "Time per output token")


def contradictions(verdict: Verdict, evidence: Evidence) -> Iterator[str]:
    """Every contradiction, in words."""
    screen, page = screen_of(verdict), report_page(verdict, evidence, TARGET)
    headline = screen.splitlines()[0].partition(" (confidence")[0].partition(";")[0]
    if headline not in unescape(page):
        yield f"the page does not have the screen's headline: {headline}"
    if verdict.summary.workload.requests and "no requests" in screen:
        yield "no requests, though there were some"
    if verdict.ruling is Ruling.HEALTHY and "What to do" in screen:
        yield "healthy, with fixes"
    # The bars of a phase are all of its latency: with what is not explained they make up a whole.
    for title in TITLES:
        shares = _shares_under(title, screen)
        if shares and not 95 <= sum(shares) <= 105:
            yield f"{title}: shares {shares} add up to {sum(shares)}%"
    if not any(engine.steps for engine in evidence.surroundings) and re.search(r"step record(?!er)", screen):
        yield "a step record is a source, and there was none"


def screen_of(verdict: Verdict) -> str:
    """What a user sees in a wide terminal."""
    out = StringIO()
    show(Console(file=out, width=200, no_color=True), verdict, TARGET)
    return out.getvalue()


def _shares_under(title: str, screen: str) -> list[int]:
    """The shares of the bars under a title."""
    block = re.search(rf"^{title}.*?\n((?:  .*\n)*)", screen, re.M)
    lines = block[1].splitlines() if block is not None else []
    bars = "\n".join(line for line in lines if re.search(r"(ms|µs|s)\s+-?\d+%", line))
    return [int(share) for share in re.findall(r"\s(-?\d+)%", bars)]

"""A validation report on the screen, readable without colour, and as a line of a Markdown table."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from phasewise.experiments.validate.claims import BUSY_ABOVE
from phasewise.experiments.validate.record import Outcome, ValidationReport

STYLES = {
    Outcome.HOLDS: "bold green",
    Outcome.FAILS: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.NOT_TRIED: "dim",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#!|~&@:])")


def device_in_words(report: ValidationReport) -> str:
    """The GPUs, or the processor where the engine runs on it."""
    hardware = report.hardware
    if not hardware.gpus:
        return f"{hardware.processor}, {hardware.cores} cores, {hardware.memory_gib} GiB"
    names = dict.fromkeys(hardware.gpus)
    counted = (f"{hardware.gpus.count(name)} x {name}" for name in names)
    memory = f", {hardware.gpu_memory_mib[0] // 1024} GiB each" if hardware.gpu_memory_mib else ""
    return f"{', '.join(counted)}{memory}"


def counts_in_words(report: ValidationReport) -> str:
    """How many claims hold, do not, and so on."""
    return ", ".join(f"{report.count(outcome)} {outcome}" for outcome in Outcome if report.count(outcome))


def render(report: ValidationReport) -> RenderableType:
    """Every claim with its outcome, those that do not hold first."""
    title = f"{device_in_words(report)}, vLLM {report.software.vllm}, {report.settings.model}"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(counts_in_words(report))]
    order = (Outcome.FAILS, Outcome.INCONCLUSIVE, Outcome.HOLDS, Outcome.NOT_TRIED)
    for claim in sorted(report.claims, key=lambda it: order.index(it.outcome)):
        parts.append(
            Text.assemble("\n", (claim.outcome.upper(), STYLES[claim.outcome]), f"  {claim.sentence}")
        )
        published = "" if claim.outcome is Outcome.NOT_TRIED else f"\npublished: {claim.published}"
        parts.append(Padding(Text(f"here: {claim.found}{published}"), (0, 0, 0, 2)))
    notes = [f"note on {it.step}: {note}" for it in report.steps for note in it.notes]
    return Group(*parts, Text(""), *map(Text, notes))


def markdown_row(report: ValidationReport, link: str) -> str:
    """The report's line in docs/validated.md; its texts are a stranger's, so their markup is escaped."""
    took_s = sum(step.took_s for step in report.steps)
    busy = sum(step.taken_share * step.took_s for step in report.steps) > BUSY_ABOVE * took_s
    failed = [claim.claim for claim in report.claims if claim.outcome is Outcome.FAILS]
    cells = (
        f"[{report.day}]({link})",
        escaped(device_in_words(report)) + (" (busy with other processes)" if busy else ""),
        escaped(
            f"{report.settings.model}, vLLM {report.software.vllm}, phasewise {report.software.phasewise}"
        ),
        *(str(report.count(outcome)) for outcome in Outcome),
        ", ".join(f"`{name}`" for name in failed) or "none",
    )
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text in which nothing is Markdown or HTML."""
    return _MARKDOWN.sub(r"\\\1", text)

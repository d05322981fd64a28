"""A validation report on the screen, readable without colour, and as a line of a Markdown table."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from phasewise.experiments.validation_claims import ClaimOutcome, ValidationReport

STYLES = {
    ClaimOutcome.FAILS: "bold red",
    ClaimOutcome.INCONCLUSIVE: "bold yellow",
    ClaimOutcome.HOLDS: "bold green",
    ClaimOutcome.NOT_TRIED: "dim",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#!|~&@:])")


def render(report: ValidationReport) -> RenderableType:
    """Every claim with its outcome, those that do not hold first."""
    title = f"{_device(report)}, vLLM {report.versions['vllm']}, {report.settings['model']}"
    counts = (f"{report.count(outcome)} {outcome}" for outcome in ClaimOutcome if report.count(outcome))
    parts: list[RenderableType] = [Text(title, style="bold"), Text(", ".join(counts))]
    order = list(STYLES)
    for claim in sorted(report.claims, key=lambda claim: order.index(claim.outcome)):
        outcome = (claim.outcome.upper(), STYLES[claim.outcome])
        parts.append(Text.assemble("\n", outcome, f"  {claim.sentence}"))
        published = "" if claim.outcome is ClaimOutcome.NOT_TRIED else f"\npublished: {claim.published}"
        parts.append(Padding(Text(f"here: {claim.found}{published}"), (0, 0, 0, 2)))
    return Group(*parts)


def markdown_row(report: ValidationReport, link: str) -> str:
    """The report's line in docs/validated.md; markup in its texts is escaped."""
    failed = [f"`{claim.claim}`" for claim in report.claims if claim.outcome is ClaimOutcome.FAILS]
    versions = f"vLLM {report.versions['vllm']}, phasewise {report.versions['phasewise']}"
    cells = (
        f"[{report.day}]({link})",
        escaped(_device(report)),
        escaped(f"{report.settings['model']}, {versions}"),
        *(str(report.count(outcome)) for outcome in ClaimOutcome),
        ", ".join(failed) or "none",
    )
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """A text in which nothing is Markdown or HTML."""
    return _MARKDOWN.sub(r"\\\1", text)


def _device(report: ValidationReport) -> str:
    """The GPUs, or the processor where the engine runs on it."""
    machine = report.machine
    return str(
        machine["gpus"] or f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB"
    )

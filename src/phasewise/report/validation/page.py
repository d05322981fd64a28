"""A validation report as one HTML page with tables alone."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from phasewise.core.units import elapsed, significant
from phasewise.experiments.validate.record import ValidationReport
from phasewise.report.layout import facts, section, strip, whole_page
from phasewise.report.markup import Html, table, together
from phasewise.report.validation.screen import counts_in_words, device_in_words

TITLE = "What holds on this hardware"


def validation_page(report: ValidationReport) -> str:
    """The whole page."""
    return whole_page(TITLE, together((_strip(report), *_sections(report))))


def _strip(report: ValidationReport) -> Html:
    about = (
        TITLE,
        device_in_words(report),
        report.day,
        f"{report.took_minutes:.0f} of {report.settings.budget_minutes:g} minutes",
    )
    cut = ("The run was interrupted.",) if report.interrupted else ()
    return strip("measured", about, counts_in_words(report), *cut)


def _sections(report: ValidationReport) -> Iterator[Html]:
    claims = ((it.sentence, it.outcome, it.found, it.published) for it in report.claims)
    yield section("Published claims", table(("claim", "outcome", "here", "published"), claims, words=4))
    measured = report.measured
    if measured.bench is not None:
        yield section("phasewise bench and vllm bench serve", table((), _rows(measured.bench)))
    if measured.calibration is not None:
        yield section("The cost of a step", table((), _rows(measured.calibration)))
    for fault in measured.faults:
        yield section(f"Planted: {fault.fault.replace('_', ' ')}", table((), _rows(fault)))
    for lever in measured.levers:
        rows = (row for part in (lever, *lever.effects) for row in _rows(part))
        yield section(f"Lever: {lever.lever.replace('_', ' ')}", table((), rows))
    parts = (report.hardware, report.software, report.settings)
    yield section("This run", facts(dict(row for part in parts for row in _rows(part))))
    steps = (
        (it.step.replace("_", " "), "done" if it.done else it.why, "; ".join(it.notes), elapsed(it.took_s))
        for it in report.steps
    )
    yield section("Steps", table(("step", "result", "notes", "time"), steps, words=3))


def _rows(part: BaseModel) -> Iterator[tuple[str, str]]:
    """The fields of a part with their values, under the names of the JSON; effects have rows of their own."""
    for name, value in part:
        if name != "effects":
            yield name.replace("_", " "), _in_words(value)


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(_in_words, value)) or "none"
    if isinstance(value, float):
        return significant(value, 4)
    return "none" if value in {None, ""} else str(value)

"""A report on the screen, as a page and as a table's line, also if a stranger wrote it."""

import re
from io import StringIO

import pytest
from rich.console import Console

from phasewise.experiments.validate.plan import Step
from phasewise.experiments.validate.record import Measured, StepResult, read_report, report_json
from phasewise.report.validation.page import validation_page
from phasewise.report.validation.screen import device_in_words, markdown_row, render
from tests.experiments.validate.builders import make_calibration, make_measured, make_report

HOSTILE = "<script>alert(1)</script>|[x](javascript:1)`**&amp;"


def on_screen(report):
    console = Console(width=100, record=True, file=StringIO())
    console.print(render(report))
    return " ".join(console.export_text().split())


def test_the_screen_and_the_page_show_the_same_claims_and_outcomes():
    report = make_report(make_measured(calibration=make_calibration(error=0.4)))
    screen, page = on_screen(report), validation_page(report)
    for claim in report.claims:
        assert " ".join(claim.found.split()) in screen
        assert claim.outcome in page
    assert "10 holds, 2 does not hold" in screen
    assert "10 holds, 2 does not hold" in page
    assert screen.index("DOES NOT HOLD") < screen.index("HOLDS `phasewise bench`")


def test_a_report_without_figures_has_a_page_that_says_why():
    steps = (StepResult(step=Step.BENCH, done=False, why="the engine did not start"),)
    report = make_report(Measured(), steps)
    assert "the engine did not start" in validation_page(report)
    assert "12 not tried" in on_screen(report)


def test_the_page_is_small_and_asks_nothing_of_the_network():
    page = validation_page(make_report())
    assert re.findall(r"(?:src|href)=|url\(|@import|fetch\(", page) == []
    assert len(page) < 60_000


def test_gpus_are_counted_with_their_memory():
    hardware = {"gpus": ("NVIDIA L4",) * 2, "gpu_memory_mib": (23034, 23034), "driver": "535.104.05"}
    report = make_report(hardware=hardware)
    assert device_in_words(report) == "2 x NVIDIA L4, 22 GiB each"
    assert "535.104.05" in validation_page(report)


def test_markup_in_a_strangers_texts_stays_text():
    report = make_report(hardware={"gpus": (HOSTILE,), "processor": HOSTILE})
    read = read_report(report_json(report), "r.json")
    assert "<script>alert" not in validation_page(read)
    row = markdown_row(read, "validated/r.json")
    assert len(re.findall(r"(?<!\\)\|", row)) == 9
    assert not re.search(r"(?<!\\)[<`](?!names_)", row.replace("\\\\", ""))
    assert "](javascript" not in row.replace("\\]", "").replace("\\(", "")


@pytest.mark.parametrize("text", ["a\x1b[31m", "a\nb", "a\u2028b"])
def test_control_characters_never_reach_the_screen(text):
    with pytest.raises(ValueError, match="pattern"):
        make_report(hardware={"processor": text})


@pytest.mark.parametrize(("taken", "busy"), [(0.05, False), (0.4, True)])
def test_a_table_says_that_a_machine_was_busy(taken, busy):
    # A step that took no time has no share worth a word.
    steps = (
        StepResult(step=Step.ENVIRONMENT, done=True, taken_share=1.0),
        StepResult(step=Step.BENCH, done=True, took_s=60.0, taken_share=taken),
    )
    report = make_report(steps=steps)
    assert ("busy with other processes" in markdown_row(report, "r.json")) is busy

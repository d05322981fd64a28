"""The table, the page and the document say the same, and nothing of it is lost without colour."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from phasewise.experiments.levers.agenda import floor_reason
from phasewise.experiments.levers.cases import CASES, PAGED_KV, RESTARTED
from phasewise.experiments.levers.results import Outputs
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.report.levers.markdown import render_markdown
from phasewise.report.levers.page import render_page
from phasewise.report.levers.table import render, render_list
from tests.experiments.levers.builders import (
    EQUAL_ANSWERS,
    PAGING,
    make_case,
    make_effect,
    make_measured,
    make_results,
)

WORSE = make_effect("tpot_p50", MetricVerdict.WORSE, 0.3, 0.2, 0.4)


def table_text(renderable, width=80):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def rendered(cases, results):
    return {
        "table": table_text(render(cases, results)),
        # Without the page's own style and script.
        "page": render_page(cases, results, "phasewise levers")
        .partition("<main>")[2]
        .partition("<script>")[0],
        "document": render_markdown(cases, results, "phasewise levers"),
    }


@pytest.fixture
def results():
    case = make_case()
    measured = make_measured(make_effect(), WORSE)
    return case, make_results(case, measured=measured, outputs=EQUAL_ANSWERS, paging=PAGING)


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_every_view_has_changes_intervals_capacity_answers_and_paging(results, view):
    case, measured = results
    text = rendered((case, PAGED_KV), measured)[view]
    for said in ("-50%", "better", "-60 to -40%", "+30%", "worse", "2.00x", "12/12 equal", "116"):
        assert said in text, said
    assert re.search(r"as\s+expected", text)


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_no_view_shows_a_speed_up_without_its_price(view):
    case = make_case(quality=True)
    text = rendered((case,), make_results(case))[view]
    assert "-50%" not in text
    assert re.search(r"price\s+in\s+accuracy", text)


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_every_view_says_what_was_not_measured_and_why(view):
    case = make_case()
    text = rendered((case,), make_results(not_measured={"lever": "the model does not fit"}))[view]
    assert "the model does not fit" in text


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_every_view_says_why_a_figure_is_missing_and_what_was_odd(view):
    silent = make_effect("itl_p99", MetricVerdict.UNKNOWN, None, None, None, reason="77 readings; needs 100")
    measured = make_measured(make_effect(), silent, remarks=("one request failed",))
    text = rendered((case := make_case(),), make_results(case, measured=measured))[view]
    for said in ("77 readings; needs 100", "one request failed"):
        assert said in text, said


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_a_noise_floor_that_failed_leaves_the_row_measured(view):
    case = make_case()
    reasons = {floor_reason(case.rows[0].workload.key): "the machine was busy"}
    floors = {RESTARTED: make_measured()}
    text = rendered((case,), make_results(case, not_measured=reasons, floors=floors))[view]
    assert "-50%" in text
    assert re.search(r"Noise floor, few tokens: not\s+measured: the machine was busy", text)
    assert "Noise floor, another start of the same engine: TTFT -60 to -40%" in " ".join(text.split())


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_every_view_prints_the_price_with_its_interval(view):
    priced = Outputs(answers=12, equal=12, perplexity_change=0.049, low=0.03, high=0.07)
    text = rendered((case := make_case(quality=True),), make_results(case, outputs=priced))[view]
    assert re.search(r"perplexity\s+\+4.9%\s+\(\+3.0%\s+to\s+\+7.0%\)", text)


@pytest.mark.parametrize("view", ["table", "page", "document"])
def test_every_view_names_levers_by_their_titles_and_the_days_of_measuring(results, view):
    case, measured = results
    text = rendered((case,), measured)[view]
    assert "the lever" in text
    assert "1970-01-01" in text


def test_the_table_keeps_to_80_columns(results):
    case, measured = results
    assert max(map(len, table_text(render((case,), measured)).splitlines())) <= 80


def test_the_pages_cells_are_coloured_by_what_helps_and_what_hurts(results):
    case, measured = results
    page = render_page((case,), measured, "phasewise levers")
    helps, hurts = "--decode", "--objective"
    colours = re.findall(r'class="effect" style="--c:var\((--[a-z]+)\)', page)
    assert colours == [helps, hurts, helps], "TTFT, TPOT and the capacity of the KV cache"


def test_the_page_begins_with_the_lever_that_helps_most(results):
    case, measured = results
    page = render_page((case,), measured, "phasewise levers")
    strip = page.partition("<main>")[2].partition("</header>")[0].lstrip()
    assert strip.startswith('<header class="strip measured">')
    assert "TTFT falls most by the lever: -50% (few tokens)" in strip
    assert len(page.encode()) < 1_500_000


def test_the_page_hides_a_speed_up_whose_price_is_unknown_from_its_strip_too():
    case = make_case(quality=True)
    assert "falls most" not in render_page((case,), make_results(case), "phasewise levers")


def test_names_cannot_break_a_page():
    case = make_case("<script>alert(1)</script>")
    assert "<script>alert" not in render_page((case,), make_results(case), "phasewise levers")


def test_the_list_names_every_lever_and_what_is_expected_of_it():
    text = " ".join(table_text(render_list(CASES)).split())
    for case in CASES:
        assert case.lever in text
        assert all(row.why in text for row in case.rows)


def test_the_document_names_the_machine_and_the_command(results):
    case, measured = results
    text = render_markdown((case,), measured, "phasewise levers --quick")
    for said in ("`phasewise levers --quick`", "a processor, 2 cores", "vLLM 0.32.0", "seed 1", "physics"):
        assert said in text

"""The page of a comparison: it says first which server is faster, and the same as the table."""

import re
from html import unescape

import numpy as np
import pytest

from phasewise.benchmark.statistics.comparison import MetricVerdict
from phasewise.report.compare import cells, conclusion, notes, render_page
from tests.benchmark.compare.test_verdict import RULES, make_pairs, make_result, shown

HOSTILE = "</script><img src=x onerror=alert(1)>"


def page_of(result, command="phasewise compare http://a http://b"):
    return render_page(result, command=command, circumstances={"Seed": "7"})


def result_of(count=8, **b_fields):
    pairs = make_pairs(count, **b_fields)
    return make_result(pairs, spreads=RULES.spreads(pairs))


def strip_of(page):
    return page.partition("<main>")[2].partition("</header>")[0].lstrip()


@pytest.mark.parametrize(
    ("b_fields", "tone", "sentence"),
    [
        ({"ttft_s": 0.36}, "failing", r"B is slower than A at TTFT p50: \+\d+\.\d% \(\+.* to \+.*%\)"),
        ({"gap_s": 0.04}, "healthy", r"B is faster than A at TPOT p50: -\d+\.\d% \(-.* to -.*%\)"),
        ({}, "measured", r"B is as fast as A: every deciding figure is within 5%\."),
        (
            {"ttft_s": 0.36, "gap_s": 0.03},
            "unknown",
            r"B is better than A at TPOT p50: -.*, and worse at TTFT p50: \+",
        ),
    ],
)
def test_the_page_says_first_which_server_is_faster_at_which_figure(b_fields, tone, sentence):
    result = result_of(**b_fields)
    strip = strip_of(page_of(result))
    assert strip.startswith(f'<header class="strip {tone}">')
    assert re.search(f"<h1>{sentence}", strip)
    for said in ("Synthetic load", "8 pairs of blocks, 288 requests counted", "A http://a", "B http://b"):
        assert said in strip, said


def test_failed_requests_are_said_before_which_server_is_faster():
    pairs, failed = make_pairs(8, ttft_s=0.36), "requests failed (A: 0 of 48, B: 5 of 48)"
    result = make_result(pairs, spreads=RULES.spreads(pairs), remarks=("the noise grew", failed))
    strip = strip_of(page_of(result))
    assert "<h1>Requests failed (A: 0 of 48, B: 5 of 48). B is slower than A at TTFT p50" in strip


def test_a_figure_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(KeyError, match="'ttft_p99' is none of ttft_p50"):
        result_of().of("ttft_p99")


def test_the_page_says_the_same_as_the_table():
    result = result_of(ttft_s=0.36)
    page, table = unescape(page_of(result)), shown(result)
    for each in result.comparisons:
        for said in cells(each):
            assert said in table, said
            assert f">{said}</td>" in page, said
    for note in notes(result):
        assert f"<li>{note}</li>" in page
        assert note.split()[0] in table


def test_every_change_is_drawn_at_its_place_with_its_interval():
    page = page_of(result_of(ttft_s=0.36))
    drawing = page.partition('aria-label="Is B better than A?"')[2].partition("</svg>")[0]
    assert drawing.count("h0") == len(RULES.metrics)
    assert "B is worse" in page
    assert 'aria-label="TTFT of A and B"' in page


def test_a_failed_control_leaves_no_verdict_on_the_page():
    pairs = make_pairs(8, ttft_s=0.4)
    result = make_result(pairs, control=RULES.control(pairs, np.random.default_rng(0)))
    assert conclusion(result).startswith("No verdict: A differs from itself in ttft_p50")
    assert strip_of(page_of(result)).startswith('<header class="strip unknown">')


def test_too_few_pairs_still_make_a_page():
    result = result_of(2)
    assert {each.verdict for each in result.comparisons} == {MetricVerdict.UNKNOWN}
    page = page_of(result)
    assert "<h1>No verdict: no figure could be compared.</h1>" in page
    assert "Nothing to draw." in page


def test_the_record_of_a_comparison_does_not_carry_the_drawn_readings():
    result = result_of()
    assert result.spreads
    assert "spreads" not in result.to_dict()


def test_the_page_is_small_asks_nothing_of_the_network_and_escapes_names():
    pairs = make_pairs(60)
    result = make_result(pairs, spreads=RULES.spreads(pairs), remarks=(HOSTILE,))
    page = page_of(result, HOSTILE)
    assert len(page.encode()) < 1_500_000
    assert not re.search(r'(?:src|href)="|url\(|@import', page)
    assert "<img" not in page
    assert "&lt;img" in page

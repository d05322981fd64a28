from __future__ import annotations

import pytest

from phasewise.bench.comparison import Verdict
from phasewise.levers import findings as words
from phasewise.levers.catalogue import Sign
from phasewise.levers.facts import as_facts
from phasewise.levers.findings import Agreement, agreement, findings
from phasewise.levers.results import Outputs
from tests.levers.builders import (
    EQUAL_ANSWERS,
    make_case,
    make_effect,
    make_measured,
    make_results,
    make_row,
)

BETTER = make_effect()
SAME = make_effect(verdict=Verdict.EQUIVALENT, change=0.01, low=-0.02, high=0.04)
OPEN = make_effect(verdict=Verdict.INCONCLUSIVE, change=0.01, low=-0.4, high=0.5)
UNKNOWN = make_effect(verdict=Verdict.UNKNOWN, change=None, low=None, high=None)


@pytest.mark.parametrize(
    ("effect", "expected", "outcome"),
    [
        (BETTER, Sign.LOWER, Agreement.AGREES),
        (BETTER, Sign.SAME, Agreement.DIFFERS),
        (BETTER, Sign.HIGHER, Agreement.DIFFERS),
        (SAME, Sign.SAME, Agreement.AGREES),
        (SAME, Sign.LOWER, Agreement.DIFFERS),
        (OPEN, Sign.LOWER, Agreement.OPEN),
        (UNKNOWN, Sign.LOWER, Agreement.MISSING),
        (None, Sign.LOWER, Agreement.MISSING),
    ],
)
def test_a_figure_agrees_when_it_went_where_physics_expects(effect, expected, outcome):
    assert agreement(effect, expected) is outcome


def test_a_row_that_differs_comes_with_its_explanation():
    case = make_case(rows=(make_row(expected={"ttft_p50": Sign.LOWER, "tpot_p50": Sign.SAME}),))
    worse = make_effect("tpot_p50", Verdict.WORSE, 0.3, 0.2, 0.4)
    (finding,) = findings((case,), make_results(case, measured=make_measured(BETTER, worse)))
    assert finding.agreement is Agreement.DIFFERS
    assert words.conclusion(finding) == "TTFT as expected; TPOT not as expected (the machine is small)"


def test_a_lever_that_changes_answers_shows_no_speed_without_its_price():
    case = make_case(quality=True)
    unpriced = Outputs(reason="the engine refuses")
    for outputs, hidden in ((None, True), (unpriced, True), (EQUAL_ANSWERS, False)):
        results = make_results(case, outputs=outputs)
        (finding,) = findings((case,), results)
        assert finding.hides_speed is hidden
        assert bool(as_facts((case,), results)["rows"][0]["effects"]) is not hidden


def test_what_was_not_measured_says_why():
    case = make_case()
    results = make_results(not_measured={"lever": "the model does not fit"})
    (finding,) = findings((case,), results)
    assert words.conclusion(finding) == "the model does not fit"
    assert as_facts((case,), results)["not_measured"] == {"lever": "the model does not fit"}


@pytest.mark.parametrize(
    ("effect", "change", "interval"),
    [
        (BETTER, "-50%", "-60 to -40%"),
        (make_effect("throughput", Verdict.BETTER, 3.2, 2.0, 5.0), "4.2x", "3.0 to 6.0x"),
        (make_effect("throughput", Verdict.INCONCLUSIVE, 1.5, -0.9, 900.0), "2.5x", "0.1 to over 100x"),
        (UNKNOWN, "–", ""),
        (None, "–", ""),
    ],
)
def test_changes_are_per_cents_until_they_grow_long(effect, change, interval):
    assert (words.change_in_words(effect), words.interval_in_words(effect)) == (change, interval)


def test_room_and_answers_are_said_in_words():
    (finding,) = findings((case := make_case(),), make_results(case, outputs=EQUAL_ANSWERS))
    assert words.capacity_in_words(finding.facts) == "2.00x"
    assert words.outputs_in_words(finding.outputs) == "12/12 equal"
    changed = Outputs(answers=12, equal=5, perplexity_change=0.049)
    assert words.outputs_in_words(changed) == "5/12 equal, perplexity +4.9%"
    assert words.outputs_in_words(Outputs(reason="refused")) == "not read, refused"

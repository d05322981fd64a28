from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.experiments.levers import findings as words
from phasewise.experiments.levers.catalogue import Sign
from phasewise.experiments.levers.findings import Agreement, agreement, findings
from phasewise.experiments.levers.results import CaseResult, Outputs
from phasewise.fleet.config import Levers
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.report.levers.facts import as_facts
from phasewise.report.levers.table import days_in_words
from tests.experiments.levers.builders import (
    EQUAL_ANSWERS,
    OFF,
    make_case,
    make_circumstances,
    make_effect,
    make_measured,
    make_results,
    make_row,
    make_workload,
)

BETTER = make_effect()
SAME = make_effect(verdict=MetricVerdict.EQUIVALENT, change=0.01, low=-0.02, high=0.04)
FASTER = make_effect(verdict=MetricVerdict.EQUIVALENT, change=-0.04, low=-0.06, high=-0.02)
SLIGHTLY_WORSE = make_effect(verdict=MetricVerdict.WORSE, change=0.09, low=0.03, high=0.15)
SLOWER = make_effect(verdict=MetricVerdict.WORSE, change=0.3, low=0.2, high=0.4)
OPEN = make_effect(verdict=MetricVerdict.INCONCLUSIVE, change=0.01, low=-0.4, high=0.5)
PRICED = Outputs(answers=12, equal=12, perplexity_change=0.049, low=0.03, high=0.07)
UNKNOWN = make_effect(verdict=MetricVerdict.UNKNOWN, change=None, low=None, high=None)


@pytest.mark.parametrize(
    ("effect", "expected", "outcome"),
    [
        (BETTER, Sign.LOWER, Agreement.AGREES),
        (BETTER, Sign.SAME, Agreement.DIFFERS),
        (BETTER, Sign.HIGHER, Agreement.DIFFERS),
        (SAME, Sign.SAME, Agreement.AGREES),
        (SAME, Sign.LOWER, Agreement.OPEN),
        (FASTER, Sign.LOWER, Agreement.AGREES),
        (FASTER, Sign.SAME, Agreement.AGREES),
        (FASTER, Sign.HIGHER, Agreement.DIFFERS),
        (SLIGHTLY_WORSE, Sign.LOWER, Agreement.DIFFERS),
        (SLIGHTLY_WORSE, Sign.SAME, Agreement.OPEN),
        (SLIGHTLY_WORSE, Sign.HIGHER, Agreement.AGREES),
        (SLOWER, Sign.SAME, Agreement.DIFFERS),
        (OPEN, Sign.LOWER, Agreement.OPEN),
        (OPEN, Sign.SAME, Agreement.OPEN),
        (OPEN, Sign.HIGHER, Agreement.OPEN),
        (UNKNOWN, Sign.LOWER, Agreement.MISSING),
        (None, Sign.LOWER, Agreement.MISSING),
    ],
)
def test_a_figure_agrees_when_all_of_its_interval_is_where_physics_expects(effect, expected, outcome):
    assert agreement(effect, expected) is outcome


def test_a_row_that_differs_comes_with_its_explanation():
    case = make_case(rows=(make_row(expected={"ttft_p50": Sign.LOWER, "tpot_p50": Sign.SAME}),))
    worse = make_effect("tpot_p50", MetricVerdict.WORSE, 0.3, 0.2, 0.4)
    (finding,) = findings((case,), make_results(case, measured=make_measured(BETTER, worse)))
    assert finding.agreement is Agreement.DIFFERS
    assert words.conclusion(finding) == "TTFT as expected; TPOT not as expected (the machine is small)"


def test_a_lever_that_changes_answers_shows_no_speed_without_its_price():
    case = make_case(quality=True)
    unpriced = Outputs(reason="the engine rejects")
    for outputs, hidden in ((None, True), (unpriced, True), (EQUAL_ANSWERS, True), (PRICED, False)):
        results = make_results(case, outputs=outputs)
        (finding,) = findings((case,), results)
        assert finding.hides_speed is hidden
        (row,) = as_facts((case,), results)["rows"]
        assert bool(row["effects"]) is not hidden
        assert (row["agreement"] is Agreement.AGREES) is not hidden
        assert ("as expected" in row["conclusion"]) is not hidden


def test_what_was_not_measured_says_why():
    case = make_case()
    results = make_results(not_measured={"lever": "the model does not fit"})
    (finding,) = findings((case,), results)
    assert words.conclusion(finding) == "the model does not fit"
    assert as_facts((case,), results)["not_measured"] == {"lever": "the model does not fit"}


def test_each_row_has_a_reason_of_its_own():
    rows = (make_row(), make_row(make_workload("more tokens", output=5)))
    case, other = make_case(rows=rows), make_case("other")
    reasons = {case.key(row): f"reason {place}" for place, row in enumerate(rows)} | {"other": "no memory"}
    results = make_results(not_measured=reasons)
    reported = [words.conclusion(finding) for finding in findings((case, other), results)]
    assert reported == ["reason 0", "reason 1", "no memory"]
    assert as_facts((case,), results)["not_measured"] == {
        key: why for key, why in reasons.items() if key != "other"
    }


def test_notes_say_why_a_figure_is_missing_and_what_was_odd():
    silent = make_effect("itl_p99", MetricVerdict.UNKNOWN, None, None, None, reason="77 readings; needs 100")
    measured = make_measured(BETTER, silent, remarks=("one request failed",))
    (finding,) = findings((case := make_case(),), make_results(case, measured=measured))
    notes = ("worst gaps (ITL p99) –: 77 readings; needs 100", "one request failed")
    assert words.footnotes(finding) == notes


def test_capacity_that_is_given_in_bytes_is_no_effect_of_lighter_weights():
    weights = make_case("weights", on=replace(OFF, scheme="w8a8"))
    cache = make_case("cache", on=replace(OFF, levers=Levers(kv_dtype="fp8")))
    same = CaseResult(kv_tokens_off=1000, kv_tokens_on=1000)
    cases = {case.engines_key: same for case in (weights, cache)}
    results = make_results(weights, cache).model_copy(update={"cases": cases})
    on_gpu = results.model_copy(update={"circumstances": make_circumstances(device="cuda")})
    capacity = [words.capacity_in_words(finding) for finding in findings((weights, cache), results)]
    assert capacity == ["fixed here", "same"]
    assert words.capacity_in_words(findings((weights,), on_gpu)[0]) == "same"


@pytest.mark.parametrize(
    ("hours", "days"), [((), "no day yet"), ((1, 20), "1970-01-01"), ((1, 30), "1970-01-01 to 1970-01-02")]
)
def test_the_days_are_those_of_the_rows(hours, days):
    rows = {str(hour): make_measured(measured_unix_s=hour * 3600.0) for hour in hours}
    assert days_in_words(make_results().model_copy(update={"rows": rows})) == days


@pytest.mark.parametrize(
    ("effect", "change", "interval"),
    [
        (BETTER, "-50%", "-60 to -40%"),
        (make_effect("throughput", MetricVerdict.BETTER, 3.2, 2.0, 5.0), "4.2x", "3.0 to 6.0x"),
        (make_effect("throughput", MetricVerdict.INCONCLUSIVE, 1.5, -0.9, 900.0), "2.5x", "0.1 to over 100x"),
        (UNKNOWN, "–", ""),
        (None, "–", ""),
    ],
)
def test_changes_are_per_cents_until_they_grow_long(effect, change, interval):
    assert (words.change_in_words(effect), words.interval_in_words(effect)) == (change, interval)


def test_capacity_and_answers_are_said_in_words():
    (finding,) = findings((case := make_case(),), make_results(case, outputs=EQUAL_ANSWERS))
    assert words.capacity_in_words(finding) == "2.00x"
    assert words.outputs_in_words(finding.outputs, quality=False) == "12/12 equal"
    assert words.outputs_in_words(Outputs(reason="rejected"), quality=True) == "not read, rejected"


def test_a_price_always_has_its_perplexity_and_the_interval():
    reported = "12/12 equal, perplexity +4.9% (+3.0% to +7.0%)"
    assert words.outputs_in_words(PRICED, quality=True) == reported
    assert words.outputs_in_words(PRICED, quality=False) == "12/12 equal"
    changed = PRICED.model_copy(update={"equal": 5})
    assert words.outputs_in_words(changed, quality=False) == reported.replace("12/12", "5/12")
    assert words.answers_in_short(PRICED, quality=True) == "12/12 =\nppl +4.9%"
    unread = Outputs(answers=12, equal=12, reason="no log-probabilities")
    assert words.outputs_in_words(unread, quality=True).endswith("perplexity not read: no log-probabilities")

"""Which published claims hold, judged from figures alone."""

import re

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.validate.claims import CLAIMS, judge_claims, read_judged
from phasewise.experiments.validate.plan import Step
from phasewise.experiments.validate.record import Measured, Outcome, StepResult, report_json
from tests.experiments.levers.builders import make_effect
from tests.experiments.validate.builders import (
    make_bench,
    make_calibration,
    make_fault,
    make_lever,
    make_measured,
    make_report,
)
from tests.paths import ROOT

HOLDS, FAILS, INCONCLUSIVE, NOT_TRIED = Outcome


def outcome_of(name, **figures):
    (found,) = [it for it in judge_claims(make_measured(**figures), ()) if it.claim == name]
    return found.outcome


def test_a_machine_like_the_published_one_confirms_every_claim():
    assert {it.outcome for it in judge_claims(make_measured(), ())} == {HOLDS}


def test_there_are_as_many_claims_as_one_reads_at_once_and_no_name_is_used_twice():
    assert 8 <= len(CLAIMS) <= 12
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_what_is_said_to_be_published_is_published():
    pages = {text.partition("\n")[0]: text for text in (it.read_text() for it in ROOT.glob("docs/**/*.md"))}
    for claim in CLAIMS:
        words, title = re.fullmatch(r"(.+) \((\D+)\)", claim.published).groups()
        (text,) = (text for heading, text in pages.items() if heading.startswith(f"# {title}"))
        figures = re.findall(r"\d+(?:\.\d+)?", words)
        assert [figure for figure in figures if figure not in text] == [], claim.name


@pytest.mark.parametrize(
    ("ratio", "noise", "void_runs", "outcome"),
    [
        (1.04, 0.30, 0, HOLDS),
        (0.96, 0.01, 0, HOLDS),
        (1.12, 0.15, 0, HOLDS),
        (1.12, 0.05, 0, FAILS),
        (0.85, 0.05, 0, FAILS),
        (1.12, 0.30, 0, INCONCLUSIVE),
        (1.01, 0.01, 1, INCONCLUSIVE),
    ],
)
def test_tools_agree_within_a_margin_or_within_their_noise(ratio, noise, void_runs, outcome):
    bench = make_bench(ratio=ratio, noise=noise, void_runs=void_runs)
    assert outcome_of("ttft_agrees", bench=bench) is outcome


def test_two_runs_of_each_tool_do_not_refute_an_agreement_as_easily_as_four():
    two, four = (make_bench(ratio=1.12, noise=0.1, runs_per_tool=runs) for runs in (2, 4))
    assert (outcome_of("tpot_agrees", bench=two), outcome_of("tpot_agrees", bench=four)) == (HOLDS, FAILS)


@pytest.mark.parametrize(("error", "outcome"), [(0.2, HOLDS), (0.21, FAILS), (None, INCONCLUSIVE)])
def test_predictions_hold_up_to_a_median_error(error, outcome):
    fit = make_calibration(held_out_error={"decode": 0.01, "prefill": error})
    assert outcome_of("predicts_prefill", calibration=fit) is outcome
    assert outcome_of("predicts_decode", calibration=fit) is HOLDS


@pytest.mark.parametrize(("fits", "outcome"), [(True, HOLDS), (False, FAILS), (None, INCONCLUSIVE)])
def test_the_form_of_costs_can_be_refuted(fits, outcome):
    assert outcome_of("form_fits", calibration=make_calibration(form_fits=fits)) is outcome


@pytest.mark.parametrize(
    ("said", "late_share", "outcome"),
    [("healthy", 0.1, HOLDS), ("overload", 0.1, FAILS), ("overload", 0.4, INCONCLUSIVE)],
)
def test_an_alarm_is_false_only_if_few_requests_were_slow(said, late_share, outcome):
    fault = make_fault(Step.HEALTHY, said, late_share=late_share)
    assert outcome_of("no_false_alarm", faults=(fault,)) is outcome


@pytest.mark.parametrize(
    ("share", "ms", "tpot", "outcome"),
    [
        (0.04, 40.0, 0.01, HOLDS),
        (0.3, 9.0, 0.01, HOLDS),
        (0.3, 40.0, 0.01, FAILS),
        (0.01, 1.0, 0.06, FAILS),
        (None, None, 0.01, NOT_TRIED),
    ],
)
def test_little_time_may_be_unexplained(share, ms, tpot, outcome):
    fault = make_fault(
        Step.HEALTHY, unexplained_ttft_share=share, unexplained_ttft_ms=ms, unexplained_tpot_share=tpot
    )
    assert outcome_of("little_unexplained", faults=(fault,)) is outcome


@pytest.mark.parametrize(
    ("said", "late_share", "outcome"),
    [("batch_cap_too_low", 0.9, HOLDS), ("overload", 0.9, FAILS), ("healthy", 0.1, INCONCLUSIVE)],
)
def test_a_fault_must_be_named_if_it_slowed_requests(said, late_share, outcome):
    fault = make_fault(Step.BATCH_CAP, said, late_share=late_share)
    assert outcome_of("names_batch_cap_too_low", faults=(fault,)) is outcome


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(-0.6, -0.1, HOLDS), (0.1, 0.6, FAILS), (-0.5, 0.2, INCONCLUSIVE)]
)
def test_a_lever_must_lower_its_metric_with_its_whole_interval(low, high, outcome):
    effect = make_effect("itl_p99", change=(low + high) / 2, low=low, high=high)
    levers = (make_lever(Step.CHUNK_SIZE, effect),)
    assert outcome_of("chunks_shorten_gaps", levers=levers) is outcome


def test_without_figures_a_claim_is_not_tried_for_the_reason_of_its_step():
    steps = (StepResult(step=Step.BENCH, done=False, why="12 s were left"),)
    results = {it.claim: it for it in judge_claims(Measured(), steps)}
    assert {it.outcome for it in results.values()} == {NOT_TRIED}
    assert results["ttft_agrees"].found == "12 s were left"
    assert results["form_fits"].found == "it was left out of this run"


@pytest.mark.parametrize(("taken", "outcome"), [(0.1, FAILS), (0.3, INCONCLUSIVE)])
def test_a_busy_machine_refutes_nothing(taken, outcome):
    steps = (StepResult(step=Step.CALIBRATION, done=True, taken_share=taken),)
    measured = make_measured(calibration=make_calibration(error=0.4))
    results = {it.claim: it for it in judge_claims(measured, steps)}
    assert results["predicts_decode"].outcome is outcome
    assert results["form_fits"].outcome is HOLDS


@pytest.mark.parametrize("change", ["missing", "twice", "another outcome"])
def test_a_report_whose_claims_do_not_follow_from_its_figures_is_rejected(change):
    report = make_report()
    assert read_judged(report_json(report), "r.json") == report
    first, *others = report.claims
    changed = {
        "missing": tuple(others),
        "twice": (first, *report.claims),
        "another outcome": (first.model_copy(update={"outcome": FAILS}), *others),
    }[change]
    altered = report.model_copy(update={"claims": changed})
    with pytest.raises(ConfigError, match="do not follow from its figures"):
        read_judged(report_json(altered), "r.json")

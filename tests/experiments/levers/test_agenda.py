from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.paging import PAGED_TRAFFIC
from phasewise.experiments.levers.agenda import (
    MOST_REQUESTS,
    QUICK,
    WHOLE,
    answers_left,
    chosen,
    controls_left,
    left_to_do,
    metrics_of,
    metrics_of_floor,
    restart_left,
    seconds_left,
    steps_left,
)
from phasewise.experiments.levers.cases import CASES, RESTARTED
from phasewise.experiments.levers.catalogue import Sign
from phasewise.experiments.levers.results import Outputs, Results
from tests.experiments.levers.builders import (
    EQUAL_ANSWERS,
    make_case,
    make_circumstances,
    make_measured,
    make_results,
    make_row,
    make_workload,
)

NOTHING = Results(circumstances=make_circumstances(), began_unix_s=0.0)


def test_levers_are_chosen_by_the_lever_or_by_the_case():
    assert [case.name for case in chosen(CASES, ["weight_quantization"], WHOLE)] == ["w8a8", "w4a16"]
    assert [case.name for case in chosen(CASES, ["w4a16"], WHOLE)] == ["w4a16"]
    assert chosen(CASES, [], WHOLE) == CASES


def test_an_unknown_lever_is_rejected_with_those_there_are():
    with pytest.raises(ConfigError, match="no lever 'warp'") as rejected:
        chosen(CASES, ["warp"], WHOLE)
    assert "prefix_cache" in rejected.value.hint


def test_a_quick_run_leaves_cases_and_rows_out_unless_they_are_named():
    slow = make_case("slow", lever="gear", quick=False)
    both = make_case("both", rows=(make_row(), make_row(make_workload("more"), quick=False)))
    assert [case.name for case in chosen((slow, both), [], QUICK)] == ["both"]
    for name in ("slow", "gear"):
        assert [case.name for case in chosen((slow, both), [name], QUICK)] == ["slow"]
    assert len(chosen((both,), [], QUICK)[0].rows) == 1


@pytest.mark.parametrize(
    ("request_s", "requests"),
    [(100.0, 6), (QUICK.block_s / 6, 6), (QUICK.block_s / 12, 12), (0.0, MOST_REQUESTS)],
)
def test_a_block_holds_as_many_requests_as_fill_its_time(request_s, requests):
    assert QUICK.block_requests(make_workload(least=6, step=3), request_s) == requests


def test_the_largest_block_is_made_of_whole_steps_of_every_workload():
    workloads = [PAGED_TRAFFIC, *(row.workload for case in CASES for row in case.rows)]
    for workload in workloads:
        assert MOST_REQUESTS % workload.requests_step == 0
        assert workload.warm_up_requests < workload.least_requests <= MOST_REQUESTS
        assert workload.least_requests % workload.requests_step == 0


def test_rows_that_are_measured_are_not_left_to_do():
    case, other = make_case("one"), make_case("two")
    results = make_results(case)
    assert left_to_do(case, results) == ()
    assert left_to_do(other, results) == other.rows


def test_a_changed_workload_is_another_row():
    case = make_case(rows=(make_row(make_workload(prompt=40)),))
    changed = make_case(rows=(make_row(make_workload(prompt=41)),))
    assert left_to_do(changed, make_results(case)) == changed.rows


def test_a_quick_run_measures_one_noise_floor_and_a_whole_one_all():
    cases = tuple(make_case(name, rows=(make_row(make_workload(name)),)) for name in ("a", "b"))
    assert [workload.name for workload in controls_left(cases, QUICK, NOTHING)] == ["a"]
    assert [workload.name for workload in controls_left(cases, WHOLE, NOTHING)] == ["a", "b"]


def test_an_effort_may_leave_noise_floors_out():
    assert controls_left((make_case(),), replace(WHOLE, most_floors=0), NOTHING) == ()


def test_a_whole_run_also_measures_another_start_of_the_base_engine_and_that_once():
    case = make_case()
    assert restart_left((case,), WHOLE, NOTHING)
    assert not restart_left((case,), QUICK, NOTHING)
    assert not restart_left((make_case(rows=()),), WHOLE, NOTHING)
    known = make_results(case, floors={RESTARTED: make_measured()})
    assert not restart_left((case,), WHOLE, known)
    assert steps_left((case,), WHOLE, NOTHING) == 1 + 1 + 1


def names(metrics):
    return [metric.name for metric in metrics]


def test_gaps_are_judged_only_where_something_is_expected_of_them():
    plain, stalls = make_row(), make_row(expected={"itl_p99": Sign.LOWER})
    assert names(metrics_of(plain)) == ["ttft_p50", "tpot_p50", "throughput"]
    assert names(metrics_of(stalls)) == ["ttft_p50", "tpot_p50", "itl_p99", "throughput"]
    cases = (make_case("one", rows=(plain,)), make_case("two", rows=(stalls,)))
    assert names(metrics_of_floor(cases, plain.workload)) == names(metrics_of(stalls))


def test_answers_of_one_token_have_no_time_per_further_token():
    row = make_row(make_workload(output=1), expected={"itl_p99": Sign.LOWER})
    assert names(metrics_of(row)) == ["ttft_p50", "throughput"]


def test_all_figures_that_are_expected_are_judged():
    for row in (row for case in CASES for row in case.rows):
        assert {*row.expected} <= {*names(metrics_of(row))}


def test_answers_that_could_not_be_read_are_left_to_do():
    case = make_case(quality=True)
    assert answers_left(case, NOTHING)
    assert answers_left(case, make_results(case, outputs=Outputs(reason="no token ids")))
    assert answers_left(case, make_results(case, outputs=EQUAL_ANSWERS)), "a price needs the perplexity"
    priced = EQUAL_ANSWERS.model_copy(update={"perplexity_change": 0.0, "low": 0.0, "high": 0.0})
    assert not answers_left(case, make_results(case, outputs=priced))
    assert not answers_left(make_case(), make_results(make_case(), outputs=EQUAL_ANSWERS))


def test_the_estimates_keep_to_ten_minutes_and_to_fifty():
    assert seconds_left(chosen(CASES, [], QUICK), QUICK, NOTHING) < 600
    assert seconds_left(chosen(CASES, [], WHOLE), WHOLE, NOTHING) < 3000


def test_reading_a_price_again_takes_its_time():
    case = make_case()
    floors = {case.rows[0].workload.key: make_measured()}
    unread = make_results(case, floors=floors, outputs=Outputs(reason="no token ids"))
    assert seconds_left((case,), QUICK, unread) > 30


def test_what_is_measured_takes_no_more_time():
    case = make_case()
    results = make_results(case, floors={case.rows[0].workload.key: make_measured()})
    assert seconds_left((case,), QUICK, results) == 0


def test_what_this_engine_cannot_have_takes_no_time():
    assert seconds_left((make_case(device="cuda"),), QUICK, NOTHING) == 0

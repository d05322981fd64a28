from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.errors import ConfigError
from phasewise.levers.agenda import (
    MOST_REQUESTS,
    QUICK,
    WHOLE,
    chosen,
    controls_left,
    left_to_do,
    seconds_left,
)
from phasewise.levers.cases import CASES
from phasewise.levers.results import Results
from tests.levers.builders import (
    make_case,
    make_circumstances,
    make_measured,
    make_results,
    make_row,
    make_workload,
)

NOTHING = Results(circumstances=make_circumstances(), began_unix_s=0.0)


def test_levers_are_chosen_by_the_lever_or_by_the_case():
    assert [case.name for case in chosen(CASES, ["weight_quantisation"], WHOLE)] == ["w8a8", "w4a16"]
    assert [case.name for case in chosen(CASES, ["w4a16"], WHOLE)] == ["w4a16"]
    assert chosen(CASES, [], WHOLE) == CASES


def test_an_unknown_lever_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no lever 'warp'") as refused:
        chosen(CASES, ["warp"], WHOLE)
    assert "prefix_cache" in refused.value.hint


def test_a_quick_run_leaves_cases_and_rows_out_unless_they_are_named():
    slow = make_case("slow", lever="gear", quick=False)
    both = make_case("both", rows=(make_row(), make_row(make_workload("more"), quick=False)))
    assert [case.name for case in chosen((slow, both), [], QUICK)] == ["both"]
    for name in ("slow", "gear"):
        assert [case.name for case in chosen((slow, both), [name], QUICK)] == ["slow"]
    assert len(chosen((both,), [], QUICK)[0].rows) == 1


@pytest.mark.parametrize(
    ("mean_wall_s", "requests"),
    [(100.0, 6), (QUICK.block_s, 6), (QUICK.block_s / 2, 12), (1e-9, MOST_REQUESTS)],
)
def test_a_block_holds_as_many_requests_as_fill_its_time(mean_wall_s, requests):
    assert QUICK.block_requests(make_workload(least=6, step=3), mean_wall_s) == requests


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


def test_without_control_pairs_there_is_no_noise_floor_to_measure():
    assert controls_left((make_case(),), replace(WHOLE, control_pairs=0), NOTHING) == ()


def test_the_estimates_keep_to_ten_minutes_and_to_an_hour():
    assert seconds_left(chosen(CASES, [], QUICK), QUICK, NOTHING) < 600
    assert seconds_left(chosen(CASES, [], WHOLE), WHOLE, NOTHING) < 3600


def test_what_is_measured_takes_no_more_time():
    case = make_case()
    results = make_results(case, floors={case.rows[0].workload.key: make_measured()})
    assert seconds_left((case,), QUICK, results) == 0


def test_what_this_engine_cannot_have_takes_no_time():
    assert seconds_left((make_case(device="cuda"),), QUICK, NOTHING) == 0

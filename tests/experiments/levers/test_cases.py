"""The catalogue holds to its own rules."""

from dataclasses import replace

import pytest

from phasewise.experiments.levers.cases import BASE, BASE_AGAIN, CASES
from phasewise.experiments.levers.catalogue import SHOWN
from phasewise.fleet.engines.lever_flags import LEVERS
from phasewise.fleet.engines.quantized_model import SCHEMES

NOT_MEASURED = {"kv_cache_memory_bytes", "max_model_len"}
"""Sizes that trade memory, not time: more of them is never slower."""

measured = pytest.mark.parametrize("case", [case for case in CASES if case.rows], ids=lambda case: case.name)


def test_every_lever_of_a_fleet_file_is_measured():
    assert {lever.name for lever in LEVERS} - NOT_MEASURED <= {case.lever for case in CASES}


@measured
def test_the_base_engine_is_one_side_so_that_two_engines_are_enough(case):
    assert BASE in (case.off.without_handicap, case.on.without_handicap)


@measured
def test_there_is_traffic_that_can_show_the_lever_and_a_quick_run_has_it(case):
    assert any(row.can_show and row.quick for row in case.rows)


@measured
def test_figures_that_are_expected_are_measured_and_explained(case):
    for row in case.rows:
        assert {*row.expected} <= {*SHOWN}
        assert row.why
        assert row.unless or not row.expected


def test_levers_that_may_change_answers_have_a_price():
    priced = {case.name for case in CASES if case.quality}
    assert {case.name for case in CASES if case.on.scheme or case.on.levers.kv_dtype} == priced
    assert {case.on.scheme for case in CASES} - {None} <= SCHEMES.keys()


def test_another_start_of_the_base_engine_differs_from_it_by_name_alone():
    assert replace(BASE_AGAIN, name=BASE.name, about=BASE.about) == BASE
    assert BASE_AGAIN.name not in {spec.name for case in CASES for spec in (case.off, case.on)}


def test_rows_have_names_of_their_own():
    keys = [case.key(row) for case in CASES for row in case.rows]
    assert len({*keys}) == len(keys)
    engines = {spec.without_handicap for case in CASES for spec in (case.off, case.on)}
    assert len({spec.name for spec in engines}) == len(engines)

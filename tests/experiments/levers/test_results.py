from __future__ import annotations

import pytest

from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.launch import EngineSize
from phasewise.experiments.levers.results import open_results
from tests.experiments.levers.builders import (
    PAGING,
    make_case,
    make_circumstances,
    make_measured,
    make_results,
    make_row,
    make_workload,
)


def test_a_row_is_on_disk_as_soon_as_it_is_measured_and_a_later_run_has_it(tmp_path):
    file = open_results(tmp_path, make_circumstances(), again=False)
    file.add(rows={"a": make_measured()})
    file.add(rows={"b": make_measured()}, attention_backend="FLASH_ATTN")
    later = open_results(tmp_path, make_circumstances(), again=False)
    assert later.results == file.results
    assert {*later.results.rows} == {"a", "b"}


def test_what_is_measured_again_is_forgotten_on_disk_and_the_rest_stays(tmp_path):
    first = make_case("first", rows=(make_row(make_workload("short")), make_row(make_workload("long"))))
    second = make_case("second", rows=(make_row(make_workload("wide")),))
    file = open_results(tmp_path, make_circumstances(), again=False)
    whole = make_results(first, second)
    floors = {row.workload.key: make_measured() for case in (first, second) for row in case.rows}
    floors[f"restarted/{first.rows[0].workload.key}"] = make_measured()
    file.add(rows=whole.rows, cases=whole.cases, floors=floors, paging=PAGING)
    file.forget((first,))
    left = open_results(tmp_path, make_circumstances(), again=False).results
    assert {*left.rows} == {second.key(second.rows[0])}
    assert {*left.cases} == {second.engines_key}
    assert {*left.floors} == {second.rows[0].workload.key}
    assert left.paging == PAGING
    file.forget((make_case("paged", rows=(), by_counters=True),))
    assert file.results.paging is None
    assert {*file.results.floors} == {second.rows[0].workload.key}


def test_a_file_that_cannot_be_read_is_replaced_on_request(tmp_path):
    file = open_results(tmp_path, make_circumstances(), again=False)
    file.add(rows={"a": make_measured()})
    file.path.write_text("{}")
    assert open_results(tmp_path, make_circumstances(), again=True).results.rows == {}


def test_the_dates_are_those_of_the_measurements():
    case = make_case()
    assert make_results().measured_between() is None
    results = make_results(
        case,
        measured=make_measured(measured_unix_s=50.0),
        floors={"few": make_measured(measured_unix_s=90.0)},
    )
    assert results.measured_between() == (50.0, 90.0)
    paged = results.model_copy(update={"paging": PAGING.model_copy(update={"measured_unix_s": 20.0})})
    assert paged.measured_between() == (20.0, 90.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "n"},
        {"model_digest": "other weights"},
        {"engine": EngineSize(cores=2)},
        {"engine": EngineSize(context_tokens=4096)},
        {"vllm": "0.33.0"},
        {"processor": "another"},
        {"pairs": 6},
        {"seed": 2},
        {"rules_digest": "longer blocks"},
    ],
)
def test_other_circumstances_do_not_mix(tmp_path, changed):
    open_results(tmp_path, make_circumstances(), again=False).add(rows={"a": make_measured()})
    assert open_results(tmp_path, make_circumstances(**changed), again=False).results.rows == {}


def test_what_could_not_be_measured_is_tried_again(tmp_path):
    file = open_results(tmp_path, make_circumstances(), again=False)
    file.add(rows={"a": make_measured()}, not_measured={"b": "no memory"})
    assert open_results(tmp_path, make_circumstances(), again=False).results.not_measured == {}


def test_a_file_that_is_none_says_how_to_go_on(tmp_path):
    file = open_results(tmp_path, make_circumstances(), again=False)
    file.add(rows={"a": make_measured()})
    file.path.write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read") as rejected:
        open_results(tmp_path, make_circumstances(), again=False)
    assert "--again" in rejected.value.hint

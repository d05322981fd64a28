from __future__ import annotations

import pytest

from phasewise.errors import ConfigError
from phasewise.levers.results import open_results
from tests.levers.builders import make_circumstances, make_measured


def test_a_row_is_on_disk_as_soon_as_it_is_measured_and_a_later_run_has_it(tmp_path):
    file = open_results(tmp_path, make_circumstances(), again=False)
    file.add(rows={"a": make_measured()})
    file.add(rows={"b": make_measured()}, attention_backend="FLASH_ATTN")
    later = open_results(tmp_path, make_circumstances(), again=False)
    assert later.results == file.results
    assert {*later.results.rows} == {"a", "b"}


def test_again_begins_anew(tmp_path):
    open_results(tmp_path, make_circumstances(), again=False).add(rows={"a": make_measured()})
    assert open_results(tmp_path, make_circumstances(), again=True).results.rows == {}


@pytest.mark.parametrize(
    "changed", [{"model": "n"}, {"vllm": "0.33.0"}, {"processor": "another"}, {"pairs": 6}, {"seed": 2}]
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
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        open_results(tmp_path, make_circumstances(), again=False)
    assert "--again" in refused.value.hint

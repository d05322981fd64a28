"""Costs that a calibration saved are read again; a file that holds none says so."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.diagnosis.gather.costs_file import load_fit, save_fit
from tests.costs.fits import make_fit


def test_costs_are_read_as_they_were_saved(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text("an older file")
    save_fit(path, make_fit())
    assert load_fit(path) == make_fit()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("{}", "does not contain step costs"), (None, "cannot be read")]
)
def test_a_file_without_costs_is_named_with_what_to_do(tmp_path, text, said):
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_fit(path)
    assert "costs.json" in caught.value.message
    assert "--save" in caught.value.hint


def test_a_place_where_nothing_can_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match="missing"):
        save_fit(tmp_path / "missing" / "costs.json", make_fit())

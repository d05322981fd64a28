"""A fit that is written and read again says the same of every step; what is no fit is rejected."""

import json

import pytest

from phasewise.core.errors import ConfigError
from phasewise.costs.fit.record import fit_from_record, fit_record
from tests.costs.fits import make_fit
from tests.costs.step_builders import WORKS


@pytest.fixture
def fit():
    return make_fit()


def written(fit):
    return json.loads(json.dumps(fit_record(fit)))


@pytest.mark.parametrize("weights_read_s", [None, 0.03])
def test_a_fit_comes_back_as_it_was(weights_read_s):
    fit = make_fit(weights_read_s=weights_read_s)
    back = fit_from_record(written(fit))
    assert back == fit
    assert [back.predict(work) for work in WORKS] == [fit.predict(work) for work in WORKS]


@pytest.mark.parametrize("record", [None, [], {}, {"record": "something else", "v": 1}])
def test_what_is_no_fit_is_rejected(record):
    with pytest.raises(ConfigError, match="does not contain step costs"):
        fit_from_record(record)


def test_a_later_version_is_not_guessed_at(fit):
    with pytest.raises(ConfigError, match="version 2"):
        fit_from_record(written(fit) | {"v": 2})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cost": {}}, "knee_tokens"),
        ({"front_end_s": None}, "None is not a number"),
        ({"front_end_s": -1.0}, "-1 is not a duration"),
        ({"knee_tokens_interval": {"low": 2.0, "high": 1.0, "confidence": 0.9}}, "interval from 2 to 1"),
        ({"regimes": [[1, 2]]}, "values to unpack"),
        ({"held_out_errors": {"sideways": []}}, "sideways"),
        ({"intervals": {}}, "floor"),
    ],
)
def test_what_is_wrong_with_a_fit_is_named(fit, change, named):
    with pytest.raises(ConfigError, match=named) as caught:
        fit_from_record(written(fit) | change)
    assert "calibrate" in caught.value.hint

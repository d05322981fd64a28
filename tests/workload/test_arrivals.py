# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from phasewise.errors import ConfigError
from phasewise.workload.arrivals import ClosedLoop, OpenLoop, Spacing, arrival_times_s


def test_constant_arrivals_are_evenly_spaced():
    assert list(islice(arrival_times_s(OpenLoop(4.0, Spacing.CONSTANT), Random(0)), 4)) == [
        0,
        0.25,
        0.5,
        0.75,
    ]


def test_poisson_arrivals_have_the_asked_rate_and_spread():
    times_s = list(islice(arrival_times_s(OpenLoop(5.0), Random(7)), 20_000))
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    assert mean_s == pytest.approx(0.2, rel=0.03)
    # An exponential gap's standard deviation equals its mean.
    assert (sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)) ** 0.5 == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_refused(rate_per_s):
    with pytest.raises(ConfigError, match="requests per second"):
        OpenLoop(rate_per_s)


def test_a_closed_loop_needs_a_slot():
    with pytest.raises(ConfigError, match="concurrency of 0"):
        ClosedLoop(0)

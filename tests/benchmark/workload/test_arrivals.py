# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, Spacing, arrival_times_s
from phasewise.core.errors import ConfigError


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


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_asked_rate_and_burstiness(burstiness):
    loop = OpenLoop(5.0, Spacing.GAMMA, burstiness)
    times_s = list(islice(arrival_times_s(loop, Random(7)), 40_000))
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    mean_s = sum(gaps_s) / len(gaps_s)
    assert mean_s == pytest.approx(0.2, rel=0.04)
    variance = sum((gap - mean_s) ** 2 for gap in gaps_s) / len(gaps_s)
    assert variance / mean_s**2 == pytest.approx(burstiness, rel=0.1)


@pytest.mark.parametrize("spacing", [Spacing.POISSON, Spacing.CONSTANT])
def test_only_gamma_arrivals_have_a_burstiness(spacing):
    with pytest.raises(ConfigError, match=f"{spacing} arrivals do not accept a burstiness of 2"):
        OpenLoop(1.0, spacing, 2.0)


@pytest.mark.parametrize("burstiness", [0.0, -1.0, float("inf"), float("nan")])
def test_a_burstiness_that_cannot_be_is_rejected(burstiness):
    with pytest.raises(ConfigError, match="the burstiness is"):
        OpenLoop(1.0, Spacing.GAMMA, burstiness)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_replay_needs_a_speed(speed):
    with pytest.raises(ConfigError, match="the replay speed is"):
        Replay(speed)


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_rejected(rate_per_s):
    with pytest.raises(ConfigError, match="requests per second"):
        OpenLoop(rate_per_s)


def test_a_closed_loop_needs_a_slot():
    with pytest.raises(ConfigError, match="concurrency is 0"):
        ClosedLoop(0)

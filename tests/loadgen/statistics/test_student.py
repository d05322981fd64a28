from __future__ import annotations

from math import atan, exp, lgamma, pi, sqrt
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.loadgen.statistics.bootstrap import _within, t_quantile

# Upper-tail critical values as printed tables give them.
PUBLISHED = [
    (0.95, 1, 6.314),
    (0.975, 1, 12.706),
    (0.9995, 1, 636.619),
    (0.975, 2, 4.303),
    (0.9995, 2, 31.599),
    (0.90, 3, 1.638),
    (0.975, 3, 3.182),
    (0.995, 3, 5.841),
    (0.9995, 3, 12.924),
    (0.99995, 3, 28.000),
    (0.975, 7, 2.365),
    (0.995, 7, 3.499),
    (0.9995, 7, 5.408),
    (0.99995, 7, 7.885),
    (0.975, 15, 2.131),
    (0.975, 30, 2.042),
    (0.9995, 30, 3.646),
    (0.99995, 30, 4.482),
    (0.975, 120, 1.980),
    (0.9995, 120, 3.373),
]


def t_cdf(value, degrees):
    """How probable a value at or below this one is."""
    share = _within(atan(abs(value) / sqrt(degrees)), degrees)
    return 0.5 + share / 2 if value >= 0 else 0.5 - share / 2


@pytest.mark.parametrize(("probability", "degrees", "published"), PUBLISHED)
def test_quantiles_are_those_of_the_printed_tables(probability, degrees, published):
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=0.00051)


@pytest.mark.parametrize("degrees", [3, 7, 8, 30])
@pytest.mark.parametrize("value", [0.5, 2.0, 5.0, 12.0])
def test_the_distribution_is_the_area_under_the_density(value, degrees):
    scale = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(degrees * pi)
    steps = 20_000
    middles = ((step + 0.5) * value / steps for step in range(steps))
    area = sum(scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2) for x in middles) * value / steps
    assert t_cdf(value, degrees) == pytest.approx(0.5 + area, abs=1e-8)


def test_one_and_two_degrees_follow_their_closed_forms():
    for value in (0.1, 1.0, 3.0, 40.0):
        assert t_cdf(value, 1) == pytest.approx(0.5 + atan(value) / pi)
        assert t_cdf(value, 2) == pytest.approx(0.5 + value / (2 * sqrt(2 + value * value)))


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995, 0.99995])
def test_many_degrees_come_close_to_the_normal_distribution(probability):
    assert t_quantile(probability, 20_000) == pytest.approx(NormalDist().inv_cdf(probability), rel=5e-4)


@given(st.floats(0.001, 0.9999), st.integers(1, 200))
def test_the_quantile_undoes_the_distribution_and_is_odd_about_the_median(probability, degrees):
    value = t_quantile(probability, degrees)
    assert t_cdf(value, degrees) == pytest.approx(probability, abs=1e-9)
    assert t_quantile(1 - probability, degrees) == pytest.approx(-value, rel=1e-6, abs=1e-9)


@given(st.floats(0.6, 0.9999), st.integers(1, 100))
def test_tails_thin_out_with_every_degree(probability, degrees):
    assert t_quantile(probability, degrees + 1) < t_quantile(probability, degrees)


def test_the_median_is_zero():
    assert t_quantile(0.5, 4) == 0.0


@pytest.mark.parametrize(("probability", "degrees"), [(0.975, 0), (0.0, 3), (1.0, 3)])
def test_what_has_no_quantile_is_rejected(probability, degrees):
    with pytest.raises(ValueError, match=r"degree|probability"):
        t_quantile(probability, degrees)

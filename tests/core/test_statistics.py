"""Quantiles, also of waits that had not ended, are those of numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.statistics import quantile, wait_quantile

WAITS = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=30)


@given(WAITS, st.floats(0.0, 1.0))
def test_a_quantile_is_interpolated(values, share):
    assert quantile(values, share) == pytest.approx(np.quantile(values, share))


@given(WAITS, WAITS, st.sampled_from([0.5, 0.75, 0.9]))
def test_waits_that_had_not_ended_count_as_by_kaplan_and_meier(answered, silent, share):
    found = wait_quantile(answered, silent, share)
    waits = scipy.stats.CensoredData(uncensored=answered, right=silent)
    answered_by = scipy.stats.ecdf(waits).cdf
    reached = answered_by.quantiles[answered_by.probabilities >= share - 1e-9]
    assert found.at_least == (len(reached) == 0)
    assert found.seconds == (max(answered + silent) if found.at_least else reached[0])

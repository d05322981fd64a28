"""A measurement that cannot be trusted says so, and noise is not called a drift."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.timeline import Part, Source
from phasewise.diagnosis.analysis.window_summary import drift, trust_of
from tests.builders import EPOCH_S, make_span, make_timeline


def starts(values, prompts=None):
    return [
        make_timeline(
            (value, value + 0.05, value + 0.1),
            request_id=f"r{index}",
            started_unix_s=EPOCH_S + index,
            prompt_tokens=100 if prompts is None else prompts[index],
        )
        for index, value in enumerate(values)
    ]


def test_how_late_the_generator_sent_is_reported():
    lags = [make_span(Part.CLIENT_LAG, seconds, Source.CLIENT_CLOCK) for seconds in (0.0, 0.1, 0.2)]
    found = trust_of([make_timeline(spans=[lag]) for lag in lags])
    assert found.lag_mean_s == pytest.approx(0.1)
    assert found.lag_p90_s == pytest.approx(0.18)
    assert trust_of([make_timeline()]).lag_mean_s is None


def test_a_warm_cache_is_no_wonder_where_others_send_too():
    asked = [
        make_timeline(prompt_tokens=600, cached_tokens=600, prompt_bytes=2400, prefix_marks=("a", "b", "c"))
    ]
    assert trust_of(asked).warm_share > 0.5
    assert trust_of(asked, are_ours=False).warm_share is None


def test_starts_that_grow_slower_drift():
    found = trust_of(starts([0.2 + 0.02 * index for index in range(60)]))
    assert found.ttft_drift == pytest.approx(1.18 / 0.4, rel=0.1)
    assert found.tpot_drift is None


def test_longer_prompts_towards_the_end_are_no_drift():
    prompts = [100] * 30 + [1000] * 30
    values = [0.2 + 0.001 * (index % 7) if index < 30 else 2.0 + 0.01 * (index % 7) for index in range(60)]
    assert trust_of(starts(values, prompts)).ttft_drift is None
    assert trust_of(starts(values)).ttft_drift is not None


def test_few_requests_report_no_drift():
    assert drift([0.1] * 7 + [0.5] * 7 + [1.0] * 7) is None
    assert drift([0.1] * 8 + [0.5] * 8 + [1.0] * 8) == pytest.approx(10.0)


def test_noise_is_hardly_ever_called_a_drift():
    rng = np.random.default_rng(5)
    found = [drift(list(rng.lognormal(0.0, 0.5, size=60))) for _ in range(400)]
    assert sum(each is not None for each in found) <= 3


@given(st.lists(st.floats(0.01, 10), min_size=24, max_size=60))
def test_a_drift_turns_around_with_time(values):
    forward, backward = drift(values), drift(values[::-1])
    assert (forward is None) == (backward is None)
    if forward is not None:
        assert forward * backward == pytest.approx(1.0)


def test_equal_values_do_not_drift():
    assert drift([0.1] * 60) is None

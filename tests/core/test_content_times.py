"""Times of long streams are computed with numpy, with the same results."""

from __future__ import annotations

from array import array

import pytest

from phasewise.core import content_times
from phasewise.core.content_times import LONG, differences, offsets
from phasewise.core.timeline_record import decode, encode
from tests.builders import make_timeline

TIMES = array("d", [1e5 + 0.0123 * chunk + 1e-5 * (chunk % 7) for chunk in range(30_000)])


@pytest.fixture
def unloaded(monkeypatch):
    monkeypatch.setattr(content_times, "_numpy", None)
    monkeypatch.setattr(content_times, "_loading", None)


def test_a_long_stream_loads_numpy_for_those_after_it_which_have_the_same_times(unloaded):
    offsets(TIMES[: LONG - 1], 1e5)
    assert content_times._loading is None
    first = [round(time_s * 10_000) for time_s in offsets(TIMES, 1e5)]
    content_times._loading.join()
    later = offsets(TIMES, 1e5)
    assert isinstance(later, array)
    assert [round(time_s * 10_000) for time_s in later] == first
    steps = differences(later, 10_000)
    assert {type(step) for step in steps} == {int}
    assert [sum(steps[: chunk + 1]) for chunk in range(0, 30_000, 1_000)] == first[::1_000]
    content_times._numpy = None
    assert differences(later, 10_000) == steps


def test_the_record_of_a_long_stream_is_that_of_a_tuple(unloaded):
    times = tuple(offsets(TIMES, 1e5))
    content_times._loading.join()
    long = make_timeline(content_times_s=offsets(TIMES, 1e5))
    assert encode(long) == encode(make_timeline(content_times_s=times))
    assert len(decode(encode(long)).content_times_s) == len(TIMES)

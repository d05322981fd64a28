"""Times of long streams are computed with numpy, with the same results."""

from __future__ import annotations

from array import array

import numpy
import pytest

from phasewise.core import content_times
from phasewise.core.content_times import LONG, differences, offsets
from phasewise.core.timeline_record import decode, encode
from phasewise.gateway.records.timeline_builder import load_numpy
from tests.builders import make_timeline

TIMES = array("d", [1e5 + 0.0123 * chunk + 1e-5 * (chunk % 7) for chunk in range(30_000)])


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.setattr(content_times, "_numpy", None)
    return lambda: content_times.use(numpy)


def test_a_long_stream_has_the_same_times_with_numpy_and_without(loaded):
    times = offsets(TIMES, 1e5)
    steps = differences(times, 10_000)
    loaded()
    assert isinstance(offsets(TIMES[: LONG - 1], 1e5), tuple)
    assert isinstance(offsets(TIMES, 1e5), array)
    assert tuple(offsets(TIMES, 1e5)) == times
    assert differences(offsets(TIMES, 1e5), 10_000) == steps
    assert {type(step) for step in differences(times, 10_000)} == {int}


def test_the_record_of_a_long_stream_is_that_of_a_tuple(loaded):
    times = offsets(TIMES, 1e5)
    loaded()
    long = make_timeline(content_times_s=offsets(TIMES, 1e5))
    assert encode(long) == encode(make_timeline(content_times_s=times))
    assert len(decode(encode(long)).content_times_s) == len(TIMES)


def test_a_gateway_loads_numpy_with_its_first_long_stream(loaded):
    load_numpy.cache_clear()
    load_numpy().join()
    assert content_times._numpy is numpy

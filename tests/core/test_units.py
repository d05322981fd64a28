"""Figures as people write them."""

from __future__ import annotations

import pytest

from phasewise.core.units import (
    change,
    counted,
    duration,
    elapsed,
    gib,
    long_duration,
    milliseconds,
    share,
    significant,
    size,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (duration(None), "–"),
        (duration(0.0), "0 ms"),
        (duration(0.0000123), "12.3 µs"),
        (duration(0.000123), "0.123 ms"),
        (duration(0.9996), "1.00 s"),
        (duration(-0.25), "-250 ms"),
        (milliseconds(0.0123), "12.3"),
        (milliseconds(None), "–"),
        (elapsed(-1.0), "0 s"),
        (elapsed(125.4), "125 s"),
        (long_duration(59), "59 seconds"),
        (long_duration(300), "5 minutes"),
        (long_duration(9_000), "2.5 hours"),
        (long_duration(86_400 * 30), "30 days"),
        (share(0.999), "99.9%"),
        (share(0.25), "25%"),
        (change(0.85), "-15%"),
        (change(1.5, digits=1), "+50.0%"),
        (counted(1, "stream"), "1 stream"),
        (counted(2.5, "stream"), "2.5 streams"),
        (size(16e9), "16 GB"),
        (size(1_234_567), "1.23 MB"),
        (size(12), "12 B"),
        (gib(3 * 2**30), "3.0 GiB"),
        (significant(1234.5), "1,230"),
        (significant(0.00123456, 2), "0.0012"),
    ],
)
def test_a_figure_has_three_digits_and_its_unit(written, expected):
    assert written == expected

"""Arithmetic on the content times of a stream: a loop, or numpy's for a long one in a process that has it.

A loop over 30,000 times takes milliseconds, in which a gateway's other streams stand still. Only who meets
such streams loads numpy, and gives it to `use`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import sub
from typing import Any

LONG = 4_096
"""Chunks with content: from here on the arithmetic is worth numpy."""

_numpy: Any = None


def use(numpy: Any) -> None:  # noqa: ANN401 - the module
    """From now on long streams are calculated with numpy."""
    global _numpy  # noqa: PLW0603 - a process has one
    _numpy = numpy


def offsets(times_s: array[float], origin_s: float) -> Sequence[float]:
    """The times since an origin: a tuple, or of a long stream an array."""
    if len(times_s) < LONG or _numpy is None:
        return tuple([time_s - origin_s for time_s in times_s])
    return array("d", (_numpy.frombuffer(times_s) - origin_s).tobytes())


def differences(times_s: Sequence[float], per_s: int) -> list[int]:
    """The times in whole units, `per_s` of them in a second, each as the difference to the one before."""
    # Differences of rounded times, not rounded differences: the error of a long stream does not add up.
    if len(times_s) < LONG or _numpy is None:
        units = [round(value * per_s) for value in times_s]
        return [*units[:1], *map(sub, units[1:], units)]
    all_units = _numpy.rint(_numpy.asarray(times_s) * per_s).astype(_numpy.int64)
    listed: list[int] = _numpy.diff(all_units, prepend=0).tolist()
    return listed

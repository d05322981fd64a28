"""Arithmetic on the content times of a stream: a loop, or numpy's for a long one once that is loaded.

A loop over 30,000 times takes milliseconds, in which the gateway's other streams stand still. Loading numpy
takes longer still, so the first long stream begins it in a thread, and only processes that have such streams
have it.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Sequence
from operator import sub
from threading import Thread
from typing import Any

LONG = 4_096
"""Chunks with content: from here on the arithmetic is worth numpy."""

_numpy: Any = None
_loading: Thread | None = None


def offsets(times_s: array[float], origin_s: float) -> Sequence[float]:
    """The times since an origin: a tuple, or of a long stream an array."""
    if len(times_s) < LONG or (numpy := _loaded()) is None:
        return tuple([time_s - origin_s for time_s in times_s])
    return array("d", (numpy.frombuffer(times_s) - origin_s).tobytes())


def differences(times_s: Sequence[float], per_s: int) -> list[int]:
    """The times in whole units, `per_s` of them in a second, each as the difference to the one before."""
    # Differences of rounded times, not rounded differences: the error of a long stream does not add up.
    if len(times_s) < LONG or (numpy := _loaded()) is None:
        units = [round(value * per_s) for value in times_s]
        return [*units[:1], *map(sub, units[1:], units)]
    all_units = numpy.rint(numpy.asarray(times_s) * per_s).astype(numpy.int64)
    listed: list[int] = numpy.diff(all_units, prepend=0).tolist()
    return listed


def _loaded() -> Any:  # noqa: ANN401 - numpy, or None until it is loaded
    global _loading  # noqa: PLW0603 - a process loads it once
    if _loading is None:
        _loading = Thread(target=_load, daemon=True)
        _loading.start()
    return _numpy


def _load() -> None:
    global _numpy  # noqa: PLW0603 - a process loads it once
    _numpy = importlib.import_module("numpy")

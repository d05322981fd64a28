"""How fast one core of this machine reads memory, measured. What is read against it is left to callers."""

from __future__ import annotations

import time

import numpy as np

READ_BYTES = 512 * 2**20
"""More than any cache holds."""
REPEATS = 4


def core_read_bytes_per_s() -> float:
    """Read a large array several times on one core; the best time counts, as others only got in its way."""
    data = np.ones(READ_BYTES // 8, dtype=np.int64)
    best_s = min(_read_s(data) for _ in range(REPEATS))
    return READ_BYTES / best_s


def _read_s(data: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    started_s = time.perf_counter()
    # The largest of integers: one pass over them, and adding up would be bound by arithmetic.
    data.max()
    return time.perf_counter() - started_s

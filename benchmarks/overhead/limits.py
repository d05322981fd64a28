"""How much a gateway carries: the most chunks per second that are on time, and the memory of a stream.

What it costs under an ordinary load is measured in the script's rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .arms import Arm, running
from .figures import largest_held
from .loads import Bench, Load, Row
from .plan import MAX_CHUNKS, Plan
from .tools import Command

DELAY_BOUND_US = 10_000
ARRIVED_SHARE = 0.97
"""Less than this of the offered chunks per second means that the upstream was held back."""
CHUNKS_PER_STREAM_S = 50
TRIES = 2
"""Another process that takes the core for 10 ms spoils a try: a rate is given up after so many."""

Say = Callable[[str], None]


def most_chunks(
    bench: Bench, arms: Sequence[Arm], upstream: Arm, plan: Plan, say: Say
) -> dict[str, list[int | None]]:
    """By gateway, the largest rate of chunks that held in each repeat."""
    held: dict[str, list[int | None]] = defaultdict(list)
    for _ in range(plan.rate_repeats if plan.rates else 0):
        without = _Remembered(lambda load: bench.run(upstream, load), say)
        for arm in arms:

            def holds(rate: int, arm: Arm = arm, without: _Remembered = without) -> bool:
                load = rate_load(rate, plan.rate_s)
                for _ in range(TRIES):
                    row = bench.run(arm, load)
                    on_time = arrives_on_time(row, without(load), rate)
                    say(f"{row}, {rate} chunks/s offered: {'held' if on_time else 'not held'}")
                    if on_time:
                        return True
                return False

            held[arm.name].append(largest_held(plan.rates, holds))
    return dict(held)


def rate_load(rate: int, seconds: float) -> Load:
    """Streams that together offer this many chunks per second, spread evenly over the time between two."""
    streams = max(1, round(rate / CHUNKS_PER_STREAM_S))
    interval_us = 1_000_000 // CHUNKS_PER_STREAM_S
    return Load(
        MAX_CHUNKS,
        streams,
        seconds,
        warm_s=seconds / 2,
        interval_us=interval_us,
        stream_tokens=1_000_000,
        ramp_us=interval_us // streams,
    )


def arrives_on_time(row: Row, without: Row, rate: int) -> bool:
    """Whether all chunks came, and hardly later than without a gateway."""
    if row.errors or row.travel_p99_us is None or without.travel_p99_us is None:
        return False
    in_full = row.chunks_per_s >= ARRIVED_SHARE * rate
    return in_full and row.travel_p99_us - without.travel_p99_us < DELAY_BOUND_US


def memory_per_stream(
    bench: Bench, commands: Mapping[str, Command], core: int, folder: Path, load: Load, say: Say
) -> tuple[dict[str, float], list[Row]]:
    """By gateway, the KiB that a stream adds to a process just started; and the rows that say so."""
    found: dict[str, float] = {}
    rows = []
    few = replace(load, connections=20, seconds=0.5, warm_s=0.5)
    for name, command in commands.items():
        with running(name, command, core, folder) as arm:
            # What is allocated once, for the first requests of all, is no part of a stream.
            bench.run(arm, few)
            before_bytes = arm.resident_bytes
            row = bench.run(arm, load, watch=_memory_of(arm))
        rows.append(row)
        each_kib = (row.peak_bytes - before_bytes) / load.connections / 1024
        say(f"{row}, {each_kib:.1f} KB per stream beyond {before_bytes / 2**20:.0f} MiB")
        if not row.errors:
            found[name] = each_kib
    return found, rows


def _memory_of(arm: Arm) -> Callable[[], int]:
    return lambda: arm.resident_bytes


class _Remembered:
    """The upstream's own row of a load, measured when it is first asked for."""

    def __init__(self, measure: Callable[[Load], Row], say: Say) -> None:
        self._measure = measure
        self._say = say
        self._rows: dict[Load, Row] = {}

    def __call__(self, load: Load) -> Row:
        if load not in self._rows:
            self._rows[load] = self._measure(load)
            self._say(str(self._rows[load]))
        return self._rows[load]

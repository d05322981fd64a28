"""Measures two arms in turn, A B B A, with the same requests in each pair of blocks.

Whatever drifts slowly (heat, neighbours, a log that grows) falls on both arms alike. What the blocks say is
left to verdict.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.compare.arms import Arm
from phasewise.compare.metrics import void
from phasewise.errors import MeasurementError

Measure = Callable[[str, RunSpec, str], Awaitable[BenchRun]]
"""Runs a specification against an address; the last argument says to people which block it is."""


@dataclass(frozen=True, slots=True)
class RunPair:
    """The same requests on either arm, one after the other."""

    a: BenchRun
    b: BenchRun

    @property
    def in_order(self) -> tuple[BenchRun, BenchRun]:
        """The two runs as they were measured."""
        first, second = sorted((self.a, self.b), key=lambda run: run.started_unix_s)
        return first, second


@dataclass(frozen=True, slots=True)
class PairsMeasured:
    """What came of measuring: the pairs that count, and how many were measured again because one was void."""

    pairs: tuple[RunPair, ...] = ()
    void_pairs: int = 0
    cut_short: bool = False


async def measure_pairs(
    arms: tuple[Arm, Arm], pairs: int, spec: RunSpec, measure: Measure, title: str
) -> PairsMeasured:
    """Measure `pairs` pairs, each with a seed of its own; a pair with a void block is measured again.

    A machine on which more than half of the pairs are void cannot compare anything, and says so.
    """
    done: list[RunPair] = []
    void_pairs = 0
    while len(done) < pairs:
        number = len(done) + void_pairs
        label = f"{title} {len(done) + 1}/{pairs}"
        runs = await _measure_pair(arms, replace(spec, seed=spec.seed + number), measure, label, number % 2)
        if runs[-1].cut_short:
            return PairsMeasured(tuple(done), void_pairs, cut_short=True)
        reasons = [reason for run in runs for reason in void(run)]
        if reasons:
            void_pairs += 1
            if void_pairs > max(pairs, 2):
                raise MeasurementError(
                    f"{void_pairs} of {number + 1} pairs of blocks were void: {reasons[0]}",
                    hint="lower the load, or run the generator on another machine than the servers",
                )
            continue
        by_arm = runs if number % 2 == 0 else runs[::-1]
        done.append(RunPair(*by_arm))
    return PairsMeasured(tuple(done), void_pairs)


async def _measure_pair(
    arms: tuple[Arm, Arm], spec: RunSpec, measure: Measure, label: str, b_first: int
) -> list[BenchRun]:
    """The runs in the order they were made; only one, if it was cut short."""
    sides = list(zip("AB", arms, strict=True))
    runs: list[BenchRun] = []
    for side, arm in sides[::-1] if b_first else sides:
        async with arm.serving() as url:
            runs.append(await measure(url, spec, f"{label}, {side}"))
        if runs[-1].cut_short:
            break
    return runs

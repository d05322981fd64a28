"""Measures two arms in turn, A B B A, with the same requests in each pair of blocks.

Whatever drifts slowly (heat, neighbours, a log that grows) falls on both arms alike. What the blocks say is
left to verdict.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec
from phasewise.compare.arms import Arm
from phasewise.compare.metrics import void

Measure = Callable[[str, RunSpec, str], Awaitable[BenchRun]]
"""Runs a specification against an address; the last argument says to people which block it is."""


FEWEST_VOID = 8
"""Fewer void pairs than this are bad luck."""


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
    """What came of measuring: the pairs that count, and how many were measured again because one was void.

    `gave_up` says why, where too many were void to go on.
    """

    pairs: tuple[RunPair, ...] = ()
    void_pairs: int = 0
    cut_short: bool = False
    gave_up: str = ""


def never() -> bool:
    """No cancellation is forgiven."""
    return False


async def measure_pairs(
    arms: tuple[Arm, Arm],
    pairs: int,
    spec: RunSpec,
    measure: Measure,
    title: str,
    forgives: Callable[[], bool] = never,
) -> PairsMeasured:
    """Measure `pairs` pairs, each with a seed of its own; a pair with a void block is measured again.

    A machine on which two of three pairs are void cannot compare anything: that ends it. So does a
    cancellation that `forgives` calls an end in good order.
    """
    done: list[RunPair] = []
    void_pairs = 0
    gave_up = ""
    try:
        while len(done) < pairs and not gave_up:
            seeded = replace(spec, seed=spec.seed + len(done) + void_pairs)
            label = f"{title} {len(done) + 1}/{pairs}"
            pair = await _measure_pair(arms, seeded, measure, label, b_first=len(done) % 2 == 1)
            if pair is None:
                return PairsMeasured(tuple(done), void_pairs, cut_short=True)
            reasons = (*void(pair.a), *void(pair.b))
            if not reasons:
                done.append(pair)
                continue
            void_pairs += 1
            if void_pairs > max(2 * pairs, FEWEST_VOID):
                gave_up = f"{void_pairs} of {void_pairs + len(done)} pairs were void: {reasons[0]}"
    except asyncio.CancelledError:
        if not forgives():
            raise
        return PairsMeasured(tuple(done), void_pairs, cut_short=True)
    return PairsMeasured(tuple(done), void_pairs, gave_up=gave_up)


async def _measure_pair(
    arms: tuple[Arm, Arm], spec: RunSpec, measure: Measure, label: str, *, b_first: bool
) -> RunPair | None:
    """Both runs of a pair; None if one was cut short."""
    runs: dict[str, BenchRun] = {}
    for side in "BA" if b_first else "AB":
        async with arms["AB".index(side)].serving() as url:
            runs[side] = await measure(url, spec, f"{label}, {side}")
        if runs[side].cut_short:
            return None
    return RunPair(runs["A"], runs["B"])

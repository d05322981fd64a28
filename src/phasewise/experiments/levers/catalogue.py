"""The terms of a lever's measurement: engines, workloads, and what physics predicts for them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum

from phasewise.experiments.compare.runner import METRICS
from phasewise.fleet.config import Levers
from phasewise.fleet.engines.lever_flags import LeverPhase
from phasewise.loadgen.workload.arrivals import Load
from phasewise.loadgen.workload.plan import PlanSpec

TTFT, TPOT, STALLS, THROUGHPUT = "ttft_p50", "tpot_p50", "itl_p99", "throughput"
SHOWN = (TTFT, TPOT, STALLS, THROUGHPUT)
LEVER_METRICS = tuple(metric for metric in METRICS if metric.name in SHOWN)
"""Few, because each additional metric widens the intervals of all."""
MARGIN = 0.10
"""A change of less than a tenth is called no effect: smaller ones are lost in most machines' noise."""


class Sign(StrEnum):
    """Which way a figure should go when the lever is switched on."""

    LOWER = "lower"
    SAME = "same"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Recompute:
    """A stand-in for an engine without a KV cache: every token is computed from the whole text."""

    @property
    def about(self) -> str:
        """In words."""
        return "without a KV cache, every token computed from the whole text"


@dataclass(frozen=True, slots=True)
class StaticBatches:
    """A stand-in for an engine whose batches stay closed until their last request has ended."""

    size: int
    linger_s: float = 0.25

    @property
    def about(self) -> str:
        """In words."""
        return f"in closed batches of {self.size}"


Handicap = Recompute | StaticBatches


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as a case needs it: levers, the quantization scheme of its weights, and its handicap."""

    name: str
    about: str
    levers: Levers = field(default_factory=Levers)
    scheme: str | None = None
    handicap: Handicap | None = None

    @property
    def without_handicap(self) -> EngineSpec:
        """The engine that must run; a handicap is a proxy in front of it."""
        return replace(self, handicap=None)

    @property
    def in_words(self) -> str:
        """The engine and its handicap."""
        return self.about if self.handicap is None else f"{self.about}, {self.handicap.about}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Traffic to try a lever with.

    A block has `least_requests` or, on a fast machine, as many as fill its time, always a multiple of
    `requests_step`, so that a closed loop ends with all its slots in use.
    """

    name: str
    about: str
    plan: PlanSpec
    least_requests: int
    requests_step: int = 1
    warm_up_requests: int = 0

    @property
    def load(self) -> Load:
        """How requests arrive."""
        return self.plan.load

    @property
    def key(self) -> str:
        """Its identity: a changed definition is another workload."""
        sizes = (self.least_requests, self.requests_step, self.warm_up_requests)
        return f"{self.name}/{digest(self.plan, *sizes)}"

    def of(self, requests: int) -> PlanSpec:
        """The plan of a block of this many requests."""
        return replace(self.plan, requests=requests)


@dataclass(frozen=True, slots=True)
class Row:
    """A lever tried with one workload.

    `expected` has the metrics that physics predicts with certainty, `why` gives the reason, and `unless`
    names what can make a measurement differ without either being wrong.
    """

    workload: Workload
    can_show: bool
    expected: Mapping[str, Sign]
    why: str
    unless: str
    quick: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """A lever off and on.

    A lever with a `quality` price may change the answers: its speed-up is shown only with that price.
    `device` names the only kind of engine that has the lever. A case `by_counters` has no rows: it is read
    from one engine's metrics.
    """

    name: str
    lever: str
    phase: LeverPhase
    title: str
    off: EngineSpec
    on: EngineSpec
    rows: tuple[Row, ...]
    quality: bool = False
    quick: bool = True
    device: str | None = None
    by_counters: bool = False

    def runs_on(self, device: str) -> bool:
        """Whether engines for this device have the lever."""
        return self.device in {None, device}

    @property
    def engines_key(self) -> str:
        """The identity of its two engines: results for these are not valid for others."""
        sides = ((side.levers, side.scheme, side.handicap) for side in (self.off, self.on))
        return f"{self.name}/{digest(*sides)}"

    def key(self, row: Row) -> str:
        """The row's identity: a changed definition is another row, and is measured again."""
        return f"{self.engines_key}/{row.workload.key}"


def digest(*facts: object) -> str:
    """A short identity of what is measured: it is the same for equal facts only."""
    return hashlib.sha256(repr(_whole(facts)).encode()).hexdigest()[:12]


def _whole(fact: object) -> object:
    """A fact with every field of its dataclasses, including those that their repr omits."""
    if is_dataclass(fact):
        return (type(fact).__name__, *(_whole(getattr(fact, each.name)) for each in fields(fact)))
    if isinstance(fact, tuple):
        return tuple(map(_whole, fact))
    return fact

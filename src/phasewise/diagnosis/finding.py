"""A finding: a cause with its cost, its evidence and what would refute it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.diagnosis.cause import Cause, Confidence, Phase


class FactSource(StrEnum):
    """Who says a fact."""

    CLIENT = "client"
    GATEWAY = "gateway"
    STEP_RECORD = "step record"
    ENGINE_REPORT = "engine report"
    COUNTERS = "engine counters"
    HOST = "host"
    FIT = "fitted costs"
    DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class Fact:
    """A number in words, and who says it."""

    words: str
    source: FactSource


@dataclass(frozen=True, slots=True)
class Finding:
    """Why time is lost in a phase.

    `share` is the cause's part of the phase's latency: of the mean TTFT for a start, of the mean time per
    output token for a stream. `lost_s` are the seconds beyond the objective, over all requests of the window,
    that it accounts for: what findings are ranked by.
    """

    phase: Phase
    cause: Cause
    share: float
    lost_s: float
    facts: tuple[Fact, ...]
    confidence: Confidence
    refuted_by: str

"""Whose eyes a window was seen with, and what such a clock can and cannot have in it."""

from __future__ import annotations

from phasewise.diagnosis.finding import FactSource

GATEWAY = "the gateway"
PROBE = "our own probe"
GENERATOR = "the load generator"
GENERATOR_AND_GATEWAY = f"{GENERATOR} and the gateway"
STEP_RECORD = "the engine's step record"
COUNTERS = "engine counters"

_SOURCES = {
    PROBE: FactSource.CLIENT,
    GENERATOR: FactSource.CLIENT,
    GENERATOR_AND_GATEWAY: FactSource.CLIENT,
    STEP_RECORD: FactSource.STEP_RECORD,
    COUNTERS: FactSource.COUNTERS,
}


def is_within_engine(seen_by: str) -> bool:
    """Whether the clock starts at the engine's own door: there is no way to it in what it saw."""
    return seen_by in {STEP_RECORD, COUNTERS}


def is_straight_from_here(seen_by: str) -> bool:
    """Whether the requests went from this machine to the engine as our own round trips do."""
    return seen_by in {PROBE, GENERATOR}


def is_our_own(seen_by: str) -> bool:
    """Whether all requests are ours: then what was sent before the window is known too."""
    return seen_by in {PROBE, GENERATOR, GENERATOR_AND_GATEWAY}


def clock_source(seen_by: str) -> FactSource:
    """Who tells of starts and gaps."""
    return _SOURCES.get(seen_by, FactSource.GATEWAY)

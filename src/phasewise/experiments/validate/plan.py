"""The steps of a validation and the time that each may take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate

from phasewise.core.errors import UsageError

LEAST_S = 20.0
"""A step with less time than this is not begun."""
STOPPING_SHARE = 0.03
"""The share of the budget in which engines stop and the report is written."""


class Step(StrEnum):
    """What is tried, in this order: steps that need the same engine follow each other."""

    ENVIRONMENT = "environment"
    BENCH = "bench"
    CALIBRATION = "calibration"
    HEALTHY = "healthy"
    LONG_PROMPTS = "long_prompts"
    PREFIX_CACHE_OFF = "prefix_cache_off"
    PREFIX_CACHE = "prefix_cache"
    CHUNK_SIZE = "chunk_size"
    BATCH_CAP = "batch_cap_too_low"


GROUPS = {
    "environment": (Step.ENVIRONMENT,),
    "bench": (Step.BENCH,),
    "calibration": (Step.CALIBRATION,),
    "faults": (Step.HEALTHY, Step.LONG_PROMPTS, Step.PREFIX_CACHE_OFF, Step.BATCH_CAP),
    "levers": (Step.PREFIX_CACHE, Step.CHUNK_SIZE),
}
_SHARES = {
    Step.ENVIRONMENT: 0.01,
    Step.BENCH: 0.27,
    Step.CALIBRATION: 0.18,
    Step.HEALTHY: 0.06,
    Step.LONG_PROMPTS: 0.07,
    Step.PREFIX_CACHE_OFF: 0.07,
    Step.PREFIX_CACHE: 0.12,
    Step.CHUNK_SIZE: 0.12,
    Step.BATCH_CAP: 0.10,
}


def chosen_steps(only: Sequence[str]) -> tuple[Step, ...]:
    """The steps of these groups, all if none is named. Faults are sized by a calibration."""
    for name in only:
        if name not in GROUPS:
            raise UsageError(f"there is no step {name!r}", hint=f"accepted: {', '.join(GROUPS)}")
    named = {step for name in only or GROUPS for step in GROUPS[name]} | {Step.ENVIRONMENT}
    if "faults" in only:
        named.add(Step.CALIBRATION)
    return tuple(step for step in Step if step in named)


def deadlines_s(steps: Sequence[Step], budget_s: float) -> dict[Step, float]:
    """When each step must have ended, in seconds from the start: time that one leaves goes to the next."""
    shares = [_SHARES[step] for step in steps]
    usable_s = (1 - STOPPING_SHARE) * budget_s
    ends = (usable_s * done / sum(shares) for done in accumulate(shares))
    return dict(zip(steps, ends, strict=True))

"""How sure a kind of verdict may be, whatever its evidence in one window: by how often it was right.

Judged on scenes whose truth removal showed: of verdicts at high confidence
95% should be right, at medium 75%. A kind that was right less often has rivals that this level of observation
cannot exclude.
"""

from __future__ import annotations

from collections.abc import Mapping

from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.finding import Cause, Confidence, Phase

_STEPS = (Cause.DECODE_FLOOR, Cause.DECODE_WEIGHTS, Cause.DECODE_OVERHEAD)
AT_MOST: Mapping[tuple[Phase, Cause], Confidence] = {
    (Phase.STREAM, Cause.BURSTS): Confidence.LOW,
    (Phase.STREAM, Cause.DECODE_KV_READS): Confidence.LOW,
}
"""At every level."""
WITHIN_ENGINE: Mapping[tuple[Phase, Cause], Confidence] = {
    (Phase.STREAM, Cause.OVERLOAD): Confidence.MEDIUM,
}
"""Where nobody sees whether prompts repeat each other."""
BY_COUNTERS: Mapping[tuple[Phase, Cause], Confidence] = {
    (Phase.START, Cause.LONG_PROMPTS): Confidence.LOW,
    (Phase.STREAM, Cause.OVERLOAD): Confidence.LOW,
    **{(Phase.STREAM, cause): Confidence.LOW for cause in _STEPS},
}
"""Where neither single requests nor steps are seen."""


def at_most(phase: Phase, cause: Cause, seen_by: SeenBy) -> Confidence:
    """The most confidence that a verdict of this kind may have."""
    tables = [AT_MOST]
    if seen_by.is_within_engine:
        tables.append(WITHIN_ENGINE)
    if seen_by is SeenBy.COUNTERS:
        tables.append(BY_COUNTERS)
    return next(
        (table[phase, cause] for table in reversed(tables) if (phase, cause) in table), Confidence.HIGH
    )

"""Prompts that are computed twice because their KV does not come from where it was computed."""

from __future__ import annotations

from phasewise.diagnosis.cause import Cause
from phasewise.diagnosis.finding import Fact, FactSource
from phasewise.diagnosis.rules.case import Claim, StartCase
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.model.timeline import Part


def kv_not_handed_over(case: StartCase) -> Claim | None:
    """Decode engines compute what prefill engines have computed for them."""
    use = case.picture.hand_over
    if use is None or not use.engines:
        return None
    taken = case.account.take_seconds(
        use.again_s / max(1, case.start.requests), Part.PREFILL, Part.PREFILL_OTHERS
    )
    return Claim(
        Cause.KV_NOT_HANDED_OVER,
        taken,
        (
            Fact(
                f"{use.requests} requests with {use.expected_tokens} prompt tokens were handed over, and the "
                f"KV of {percent(use.came_tokens / use.expected_tokens)} of them came",
                FactSource.COUNTERS,
            ),
            Fact(
                f"it does not come to {', '.join(use.engines)}",
                FactSource.COUNTERS,
            ),
            Fact(f"computing them a second time takes {ms(taken.seconds)} of TTFT", FactSource.ENGINE_REPORT),
        ),
        "`phasewise check` proves every pair by its counters",
    )

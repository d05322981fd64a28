"""How a phase's loss is shared out among the claims on its latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.diagnosis.cause import Cause
from phasewise.diagnosis.rules.account import Taken
from phasewise.diagnosis.rules.case import Claim

NEEDED = frozenset({Cause.LONG_PROMPTS, Cause.DECODE_FLOOR, Cause.DECODE_WEIGHTS, Cause.DECODE_OVERHEAD})
"""What a request needs by itself, alone on the engine: its own prompt, and steps."""
WORTH_SPEAKING_OF = 0.25
"""What comes on top of that does not explain a slow phase if it is less of its latency than this."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How the time that users lost is shared out: one share per claim, in their order, and what is left."""

    shares: tuple[float, ...]
    unexplained: float


def share_out(claims: Sequence[Claim], unclaimed: Taken, objective_s: float, by_stalls: float = 0.0) -> Loss:
    """Share the loss out: the part `by_stalls` by stalls, the rest by the time beyond the objective.

    The objective pays for what a request needs by itself first: a floor of 65 ms within an objective of
    100 ms is not what is lost, however large a part of a token of 115 ms it is.
    """
    seconds = [claim.taken.seconds for claim in claims]
    whole_s = sum(seconds) + unclaimed.seconds
    needed_s = sum(claim.taken.seconds for claim in claims if claim.cause in NEEDED)
    paid_s = min(objective_s, needed_s)
    if whole_s <= objective_s or whole_s - needed_s < WORTH_SPEAKING_OF * whole_s:
        paid_s = 0.0
    beyond = [
        value * (1.0 - paid_s / needed_s) if claim.cause in NEEDED and needed_s > 0 else value
        for claim, value in zip(claims, seconds, strict=True)
    ]
    per_second = (1.0 - by_stalls) / (whole_s - paid_s) if whole_s > paid_s else 0.0
    return Loss(
        shares=tuple(
            value * per_second + by_stalls * claim.taken.stall_share
            for claim, value in zip(claims, beyond, strict=True)
        ),
        unexplained=unclaimed.seconds * per_second + by_stalls * unclaimed.stall_share,
    )


def with_silent(loss: Loss, claims: Sequence[Claim], unseen: float, held: float) -> Loss:
    """The same, where claims speak of a part of the loss only.

    Of all that was lost, requests that nobody answered lost the share `held` in the gateway and the share
    `unseen` somewhere else, and no rule has looked at either.
    """
    gateway = next((index for index, claim in enumerate(claims) if claim.cause is Cause.GATEWAY), None)
    if gateway is None:
        unseen, held = unseen + held, 0.0
    known = 1.0 - unseen - held
    return Loss(
        shares=tuple(
            share * known + (held if index == gateway else 0.0) for index, share in enumerate(loss.shares)
        ),
        unexplained=loss.unexplained * known + unseen,
    )

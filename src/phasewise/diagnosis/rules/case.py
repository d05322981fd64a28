"""A phase before the rules: its picture, the objective and the account of its parts.

How the parts are opened is decided here: the mean TTFT for a start, stalls and the mean token for a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.diagnosis.cause import Cause, Confidence
from phasewise.diagnosis.finding import Fact
from phasewise.diagnosis.picture import Picture, StartPicture, StreamPicture, TokenLedger
from phasewise.diagnosis.rules.account import Account, Taken
from phasewise.diagnosis.stall_causes import ExplainedStall, StallCause
from phasewise.model.slo import Slo
from phasewise.model.timeline import TTFT_PARTS, Part

RESIDUAL = "residual"
"""What no clock saw."""

WAITING = (Part.ENGINE_QUEUE, Part.STEP_IN_FLIGHT)
"""Parts of a start in which nothing is computed for the request."""
BEHIND_OTHERS = (*WAITING, Part.PREFILL_OTHERS)


class TokenPart(StrEnum):
    """Where the time of a mean output token goes."""

    FLOOR = "floor"
    BATCH = "batch"
    KV_READ = "kv_read"
    # The three above in one, where no fit tells them apart.
    STEP = "step"
    PROMPTS = "prompts"
    PREEMPTED = "preempted"
    PAUSED = "paused"
    CLIENT = "client"
    COLD = "cold"


STEP_PARTS = (TokenPart.FLOOR, TokenPart.BATCH, TokenPart.KV_READ, TokenPart.STEP)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says: a cause, what it took, why, and how sure its kind of evidence can be."""

    cause: Cause
    taken: Taken
    facts: tuple[Fact, ...]
    refuted_by: str
    at_most: Confidence = Confidence.HIGH


@dataclass(frozen=True, slots=True)
class StartCase:
    """A slow start before the rules."""

    picture: Picture
    start: StartPicture
    slo: Slo
    account: Account


@dataclass(frozen=True, slots=True)
class StreamCase:
    """Slow streaming before the rules. `guessed_step` says that the step's time is only the usual gap."""

    picture: Picture
    stream: StreamPicture
    slo: Slo
    account: Account
    guessed_step: bool = False

    def stalls(self, *causes: StallCause) -> tuple[ExplainedStall, ...]:
        """The noticed stalls of these causes."""
        return tuple(found for found in self.stream.stalls if found.cause in causes)


def stall_part(cause: StallCause) -> str:
    """The account's name for stalls of a cause."""
    return f"stalls: {cause.value}"


def open_start(picture: Picture, start: StartPicture, slo: Slo) -> StartCase:
    """The parts of the mean TTFT."""
    seconds = {str(part): max(0.0, start.seconds(part)) for part in TTFT_PARTS}
    seconds[RESIDUAL] = max(0.0, start.residual_s)
    return StartCase(
        picture, start, slo, Account({part: Taken(value) for part, value in seconds.items() if value > 0})
    )


def open_stream(picture: Picture, stream: StreamPicture, slo: Slo) -> StreamCase:
    """The parts of the mean token, and the stalls beside them, by their causes."""
    ledger = stream.ledger or _ledger_of(stream)
    parts = {part: Taken(value) for part, value in _token_parts(ledger).items()}
    stalled_s = sum(found.stall.excess_s for found in stream.stalls)
    for found in stream.stalls if stalled_s > 0 else ():
        part = stall_part(found.cause)
        parts[part] = parts.get(part, Taken()) + Taken(0.0, found.stall.excess_s / stalled_s)
    return StreamCase(picture, stream, slo, Account(parts), stream.ledger is None and stream.step_s is None)


def _ledger_of(stream: StreamPicture) -> TokenLedger:
    """What can be told of the mean token without a ledger: the usual step or gap, and the rest."""
    step_s = stream.step_s if stream.step_s is not None else (stream.gap_p50_s or 0.0)
    step_s = min(step_s, stream.tpot_mean_s)
    prompts_s = min(stream.chunk_excess_s or 0.0, stream.tpot_mean_s - step_s)
    return TokenLedger(step_s=step_s, prompts_s=prompts_s, residual_s=stream.tpot_mean_s - step_s - prompts_s)


def _token_parts(ledger: TokenLedger) -> dict[str, float]:
    steps = {
        str(TokenPart.FLOOR): ledger.floor_s,
        str(TokenPart.BATCH): ledger.batch_s,
        str(TokenPart.KV_READ): ledger.kv_read_s,
    }
    told = {part: seconds for part, seconds in steps.items() if seconds is not None}
    parts = {
        **(told or {str(TokenPart.STEP): ledger.step_s}),
        str(TokenPart.PROMPTS): ledger.prompts_s,
        str(TokenPart.PREEMPTED): ledger.preempted_s,
        str(TokenPart.PAUSED): ledger.paused_s,
        str(TokenPart.CLIENT): ledger.client_s,
        str(TokenPart.COLD): ledger.cold_s,
        RESIDUAL: ledger.residual_s,
    }
    return {part: seconds for part, seconds in parts.items() if seconds > 0}

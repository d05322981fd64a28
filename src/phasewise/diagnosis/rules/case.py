"""The input of the rules for a phase: its summary, the objective and the account of its parts.

The account has the parts of the mean TTFT for a start, and stalls and the mean token for a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from phasewise.core.slo import Slo
from phasewise.core.timeline import TTFT_PARTS, Part
from phasewise.core.units import duration, share
from phasewise.diagnosis.analysis.engine_load import SLOTS_TAKEN, EngineLoad, EngineSurroundings
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, StallCause
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource

# --- The account of a phase: the parts of its mean latency, and the stalls of its streams.
#
# A part is claimed at most once: what a rule took is not available to later rules.


@dataclass(frozen=True, slots=True)
class Taken:
    """What was claimed: seconds of the mean latency, and a share of all time that streams stalled."""

    seconds: float = 0.0
    stall_share: float = 0.0

    @property
    def is_something(self) -> bool:
        """Whether anything was there to take."""
        return self.seconds > 0 or self.stall_share > 0

    def __add__(self, other: Taken) -> Taken:
        return Taken(self.seconds + other.seconds, self.stall_share + other.stall_share)


class Account:
    """The parts of one phase. Rules are its only writers, one after the other."""

    def __init__(self, parts: Mapping[str, Taken]) -> None:
        self._whole = dict(parts)
        self._left = dict(parts)

    @property
    def whole_s(self) -> float:
        """All parts together, claimed or not."""
        return sum(part.seconds for part in self._whole.values())

    @property
    def unclaimed(self) -> Taken:
        """What no rule has claimed."""
        return sum(self._left.values(), Taken())

    def seconds(self, *parts: str) -> float:
        """What is left of these parts."""
        return sum(self._left[part].seconds for part in parts if part in self._left)

    def take(self, fraction: float, *parts: str) -> Taken:
        """Claim this fraction of what is left of each part."""
        fraction = min(max(fraction, 0.0), 1.0)
        taken = Taken()
        for part in parts:
            if part not in self._left:
                continue
            left = self._left[part]
            claimed = Taken(left.seconds * fraction, left.stall_share * fraction)
            self._left[part] = Taken(left.seconds - claimed.seconds, left.stall_share - claimed.stall_share)
            taken += claimed
        return taken

    def take_seconds(self, seconds: float, *parts: str) -> Taken:
        """Claim so many seconds, from each part in proportion to what is left of it."""
        there_s = self.seconds(*parts)
        return self.take(seconds / there_s, *parts) if there_s > 0 else Taken()

    def check_invariants(self) -> None:
        """Nothing is claimed twice, and nothing that was never there."""
        for part, whole in self._whole.items():
            left = self._left[part]
            if not -1e-9 <= left.seconds <= whole.seconds + 1e-9:
                raise AssertionError(f"{left.seconds} s left of {part}, which had {whole.seconds} s")
            if not -1e-9 <= left.stall_share <= whole.stall_share + 1e-9:
                raise AssertionError(
                    f"{left.stall_share} of all stalls left in {part} of {whole.stall_share}"
                )
        if sum(part.stall_share for part in self._whole.values()) > 1 + 1e-9:
            raise AssertionError("stall shares add up to more than 1")


UNEXPLAINED = "unexplained"
"""Time that no source reports."""

QUEUED = (Part.GATEWAY_WAIT, Part.ENGINE_QUEUE)
"""Parts of a start in which the request waits for a slot: of the gateway's part, what `gateway_wait` left."""
WAITING = (*QUEUED, Part.STEP_IN_FLIGHT)
"""Parts of a start in which nothing is computed for the request."""
BEHIND_OTHERS = (*WAITING, Part.PREFILL_OTHERS)


class TokenPart(StrEnum):
    """Where the time of a mean output token goes."""

    FLOOR = "floor"
    BATCH = "batch"
    KV_READ = "kv_read"
    # The three above in one, if no fit separates them.
    STEP = "step"
    PROMPTS = "prompts"
    PREEMPTED = "preempted"
    PAUSED = "paused"
    CLIENT = "client"
    COLD = "cold"


STEP_PARTS = (TokenPart.FLOOR, TokenPart.BATCH, TokenPart.KV_READ, TokenPart.STEP)


@dataclass(frozen=True, slots=True)
class Claim:
    """A rule's claim: a cause, what it took, the facts, and the highest confidence of such evidence.

    With `seen_itself` the cause is observed and not inferred from how well requests match steps.
    """

    cause: Cause
    taken: Taken
    facts: tuple[Fact, ...]
    refuted_by: str
    at_most: Confidence = Confidence.HIGH
    rival: Cause | None = None
    seen_itself: bool = False


@dataclass(frozen=True, slots=True)
class StartCase:
    """The input of the rules for a slow start."""

    summary: WindowSummary
    start: StartSummary
    slo: Slo
    account: Account


@dataclass(frozen=True, slots=True)
class StreamCase:
    """The input of the rules for slow streaming. `guessed_step` says that the step's time is only the median
    gap.
    """

    summary: WindowSummary
    stream: StreamSummary
    slo: Slo
    account: Account
    guessed_step: bool = False

    def stalls(self, *causes: StallCause) -> tuple[ExplainedStall, ...]:
        """The noticeable stalls of these causes."""
        return tuple(found for found in self.stream.stalls if found.cause in causes)


def stall_part(cause: StallCause) -> str:
    """The account's name for stalls of a cause."""
    return f"stalls: {cause.value}"


def open_start(summary: WindowSummary, start: StartSummary, slo: Slo) -> StartCase:
    """The parts of the mean TTFT of late requests; of all requests, if those are not distinguished."""
    parts = start.late_parts or start.parts
    seconds = {
        str(part): max(0.0, sum(entry.seconds for entry in parts if entry.part is part))
        for part in TTFT_PARTS
    }
    seconds[UNEXPLAINED] = max(0.0, start.late_unexplained_s if start.late_parts else start.unexplained_s)
    return StartCase(
        summary, start, slo, Account({part: Taken(value) for part, value in seconds.items() if value > 0})
    )


def open_stream(summary: WindowSummary, stream: StreamSummary, slo: Slo) -> StreamCase:
    """The parts of the mean token of slow streams, and the stalls beside them, by their causes."""
    ledger = stream.slow_ledger or stream.ledger or _ledger_of(stream)
    parts = {part: Taken(value) for part, value in _token_parts(ledger).items()}
    stalled_s = sum(found.stall.excess_s for found in stream.stalls)
    for found in stream.stalls if stalled_s > 0 else ():
        part = stall_part(found.cause)
        parts[part] = parts.get(part, Taken()) + Taken(0.0, found.stall.excess_s / stalled_s)
    return StreamCase(summary, stream, slo, Account(parts), stream.ledger is None and stream.step_s is None)


def _ledger_of(stream: StreamSummary) -> TokenLedger:
    """The mean token without a ledger: the median step or gap, and the rest."""
    step_s = stream.step_s if stream.step_s is not None else (stream.gap_p50_s or 0.0)
    step_s = min(step_s, stream.tpot_mean_s)
    prompts_s = min(stream.chunk_excess_s or 0.0, stream.tpot_mean_s - step_s)
    return TokenLedger(
        step_s=step_s, prompts_s=prompts_s, unexplained_s=stream.tpot_mean_s - step_s - prompts_s
    )


def _token_parts(ledger: TokenLedger) -> dict[str, float]:
    steps = {
        str(TokenPart.FLOOR): ledger.floor_s,
        str(TokenPart.BATCH): ledger.batch_s,
        str(TokenPart.KV_READ): ledger.kv_read_s,
    }
    reported = {part: seconds for part, seconds in steps.items() if seconds is not None}
    parts = {
        **(reported or {str(TokenPart.STEP): ledger.step_s}),
        str(TokenPart.PROMPTS): ledger.prompts_s,
        str(TokenPart.PREEMPTED): ledger.preempted_s,
        str(TokenPart.PAUSED): ledger.paused_s,
        str(TokenPart.CLIENT): ledger.client_s,
        str(TokenPart.COLD): ledger.cold_s,
        UNEXPLAINED: ledger.unexplained_s,
    }
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


# --- Readings over several engines: means weighted by the requests they served.

Reading = Callable[[EngineSurroundings], float | None]


def mean_of(engines: Sequence[EngineSurroundings], reading: Reading) -> float | None:
    """The mean over the engines that have the reading, weighted by their requests."""
    values = [(engine.requests, value) for engine in engines if (value := reading(engine)) is not None]
    if not values:
        return None
    requests = sum(weight for weight, _ in values)
    if not requests:
        return sum(value for _, value in values) / len(values)
    return sum(weight * value for weight, value in values) / requests


def worst_of(engines: Sequence[EngineSurroundings], reading: Reading) -> EngineSurroundings | None:
    """The engine with the highest reading among those that served any request."""
    known = [engine for engine in engines if engine.requests and reading(engine) is not None]
    return max(known, key=lambda engine: reading(engine) or 0.0, default=None)


def engine_loads(summary: WindowSummary) -> tuple[EngineLoad, ...]:
    """The loads of the engines that report them."""
    return tuple(engine.engine_load for engine in summary.engines if engine.engine_load is not None)


def engine_load_source(summary: WindowSummary) -> FactSource:
    """The source of the engines' loads: their steps, or readings of their gauges."""
    by_steps = any(engine.steps is not None for engine in summary.engines)
    return FactSource.STEP_RECORD if by_steps else FactSource.COUNTERS


def over_waiting(summary: WindowSummary, reading: Callable[[EngineLoad], float]) -> float | None:
    """A share of the time in which requests waited, weighted by how many waited; None if not observed."""
    known = engine_loads(summary)
    waiting = sum(engine_load.waiting_mean for engine_load in known)
    return (
        sum(engine_load.waiting_mean * reading(engine_load) for engine_load in known) / waiting
        if waiting > 0
        else None
    )


def fullest(summary: WindowSummary) -> EngineLoad | None:
    """The load of the engine with the most waiting requests."""
    return max(
        engine_loads(summary),
        key=lambda engine_load: (engine_load.waiting_mean, engine_load.running_mean),
        default=None,
    )


def capped_share(summary: WindowSummary) -> float | None:
    """The share of the time in which requests waited and as many ran as ever do; None if not observed.

    If an engine does not report how many wait, it is the time in which all its slots were taken.
    """
    engine_load = fullest(summary)
    if engine_load is None or engine_load.waiting_max or engine_load.full_share < SLOTS_TAKEN:
        return over_waiting(summary, lambda load: load.capped_share)
    return engine_load.full_share


def slots_are_taken(summary: WindowSummary) -> bool:
    """Whether the engines ran as many requests as they admit, so that the gateway held back the others."""
    known = engine_loads(summary)
    return bool(known) and all(
        engine_load.full_share >= SLOTS_TAKEN and engine_load.running_max > 1 for engine_load in known
    )


def busy_share(engine: EngineSurroundings) -> float | None:
    """The part of the window in which a step ran."""
    return engine.steps.busy_share if engine.steps is not None else None


SATURATED_SHARE = 0.9
"""An engine that computes at least this share of the time is saturated."""
AT_EASE_SHARE = 0.75
"""Below this utilization an engine's queue stays short."""


def queue_relief(summary: WindowSummary, spared: float, *, capped: bool = False) -> float:
    """The share of the waiting that would go if engines had this share less work: all of it if they are
    saturated only by that work, except that requests would still wait for KV blocks and, with `capped`, for
    a slot.
    """
    busy = mean_of(summary.engines, _used_share)
    offered = (busy or 0.0) * (1.0 + excess(summary))
    if busy is None or busy < SATURATED_SHARE or offered * (1.0 - spared) > AT_EASE_SHARE:
        return spared
    held_back = over_waiting(summary, lambda load: load.kv_full_share) or 0.0
    held_back += (capped_share(summary) or 0.0) if capped else 0.0
    return spared + (1.0 - spared) * (1.0 - min(1.0, held_back))


def excess(summary: WindowSummary) -> float:
    """How many more requests came than were served, as a share of those served: 0 if none were left over."""
    # The last third has as many more than the first as came too many in two thirds of the window.
    growth = sum(max(0.0, engine_load.growth) for engine_load in engine_loads(summary)) * 1.5
    return growth / max(1.0, summary.workload.requests)


def _used_share(engine: EngineSurroundings) -> float | None:
    """The part of the window in which a step ran or, without a record of steps, requests were there."""
    if engine.steps is None and engine.engine_load is not None:
        return 1.0 - engine.engine_load.idle_share
    return busy_share(engine)


def running_mean(summary: WindowSummary) -> float | None:
    """How many requests shared a step, on average."""
    by_engine_load = mean_of(
        summary.engines,
        lambda engine: engine.engine_load.running_mean if engine.engine_load is not None else None,
    )
    return summary.workload.running_mean if by_engine_load is None else by_engine_load


def prompt_work_share(summary: WindowSummary) -> float | None:
    """The part of the engines' busy time that went into prompts; None without a record of steps or readings.

    Every rank computes its own prompts. Engines without a record are left out with their requests.
    """
    if summary.prompts_share is not None:
        return summary.prompts_share
    recorded = [engine for engine in summary.engines if engine.steps is not None]
    busy_s = sum(_all_ranks_busy_share(engine) * summary.window_s for engine in recorded)
    if summary.start is None or busy_s <= 0:
        return None
    answered = summary.start.requests - summary.start.unanswered
    served = sum(engine.requests for engine in summary.engines)
    theirs = sum(engine.requests for engine in recorded) / served if served else 1.0
    return min(1.0, summary.start.seconds(Part.PREFILL) * answered * theirs / busy_s)


def _all_ranks_busy_share(engine: EngineSurroundings) -> float:
    """More than one if several ranks computed at the same time."""
    if engine.ranks_busy_share is not None:
        return engine.ranks_busy_share
    return busy_share(engine) or 0.0


def context_tokens(summary: WindowSummary) -> int:
    """The context length of a typical stream, half-way through."""
    prompt, output = summary.workload.prompt_p50_tokens, summary.workload.output_p50_tokens
    return round((prompt or 0.0) + (output or 0.0) / 2)


# --- The format of figures in facts.


def ms(seconds: float | None) -> str:
    """A duration for a sentence."""
    if seconds is None:
        return "unknown"
    return duration(seconds)


def percent(value: float) -> str:
    """A share in per cent."""
    return share(value)

"""Where the mean TTFT and the mean token went, as rows that add up, each with who says so and its colour.

Colours are names of the page's own variables; bench/page/style.css says what they look like.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.bench.page.phases import PHASES, UNEXPLAINED
from phasewise.diagnosis.finding import FactSource
from phasewise.diagnosis.picture import StartPicture, StreamPicture, TokenLedger
from phasewise.model.latency import PartTime
from phasewise.model.timeline import Part, Source

SMALL_SHARE = 0.01
"""Rows that make up less of the whole than this are put together: they would only be zeros."""
SEEN_SHARE = 0.005
"""Less than this is shown as 0%, so it is left out."""
PARTS = {
    Part.CLIENT_LAG: "generator lag",
    Part.GATEWAY_WAIT: "gateway",
    Part.CACHE_LOOK_UP: "cache look-up",
    Part.EARLIER_ATTEMPTS: "earlier attempts",
    Part.STEP_IN_FLIGHT: "waiting for running step",
    Part.ENGINE_QUEUE: "engine queue",
    Part.PREFILL: "prefill, own tokens",
    Part.PREFILL_OTHERS: "prefill, others' tokens",
    Part.HAND_OVER: "KV hand-over",
}
RESIDUAL = "residual"
NO_CLOCK = "no clock saw it"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a mean latency."""

    name: str
    seconds: float
    source: str
    colour: str


def start_rows(start: StartPicture) -> tuple[LedgerRow, ...]:
    """The mean TTFT of the requests whose engine told its phases."""
    told = (
        LedgerRow(_part_name(entry), entry.seconds, _source(entry.source), PHASES[entry.part].colour)
        for entry in start.parts
    )
    return (*told, _residual(start.residual_s))


def _part_name(entry: PartTime) -> str:
    # Only the step record tells a prefill's own tokens from those of others in the same steps.
    if entry.part is Part.PREFILL and entry.source is not Source.STEP_RECORD:
        return "prefill, whosever tokens"
    return PARTS[entry.part]


def _source(source: Source) -> str:
    return source.value.replace("_", " ")


def stream_rows(stream: StreamPicture) -> tuple[LedgerRow, ...]:
    """The mean time of a token after the first, as far as anybody can split it."""
    if stream.ledger is not None:
        return _ledger_rows(stream.ledger)
    if stream.step_s is None:
        return ()
    recorded = stream.chunk_excess_s is not None
    source = FactSource.STEP_RECORD if recorded else FactSource.ENGINE_REPORT
    rows = [LedgerRow("decode steps", stream.step_s, source, "--decode")]
    if stream.chunk_excess_s is not None:
        rows.append(LedgerRow("others' prompts", stream.chunk_excess_s, source, "--prefill"))
    if stream.residual_s is not None:
        rows.append(_residual(stream.residual_s))
    return tuple(rows)


def _ledger_rows(ledger: TokenLedger) -> tuple[LedgerRow, ...]:
    steps, fit = FactSource.STEP_RECORD, FactSource.FIT
    split = (
        ("a step of one stream", ledger.floor_s, fit, "--decode"),
        ("more streams in it", ledger.batch_s, fit, "--prefill-others"),
        ("reading the KV cache", ledger.kv_read_s, fit, "--hand-over"),
    )
    whole = (("decode steps", ledger.step_s, steps, "--decode"),)
    known = all(seconds is not None for _, seconds, _, _ in split)
    rows = (
        *(split if known else whole),
        ("others' prompts", ledger.prompts_s, steps, "--prefill"),
        ("preempted", ledger.preempted_s, steps, "--earlier-attempts"),
        ("engine stood still", ledger.paused_s, steps, "--client-lag"),
        ("client did not read", ledger.client_s, FactSource.GATEWAY, "--gateway-wait"),
        ("first steps of their kind", ledger.cold_s, steps, "--step-in-flight"),
    )
    told = (LedgerRow(name, seconds or 0.0, source, colour) for name, seconds, source, colour in rows)
    return (*told, _residual(ledger.residual_s))


def _residual(seconds: float) -> LedgerRow:
    return LedgerRow(RESIDUAL, seconds, NO_CLOCK, UNEXPLAINED.colour)


def worth_a_row(rows: tuple[LedgerRow, ...], whole_s: float) -> tuple[LedgerRow, ...]:
    """The rows that a reader can see, the others in one if that is seen; the residual always, and last."""
    *told, residual = rows
    small = [row for row in told if abs(row.seconds) < SMALL_SHARE * whole_s]
    seen = [row for row in told if row not in small]
    small_s = sum(row.seconds for row in small)
    if abs(small_s) >= SEEN_SHARE * whole_s:
        names = "; ".join(row.name for row in small if row.seconds)
        seen.append(LedgerRow("smaller parts", small_s, names, UNEXPLAINED.colour))
    return (*seen, residual)


def share_in_words(seconds: float, whole_s: float) -> str:
    """A row's part of the whole in per cent; what rounds to nothing has no sign."""
    if whole_s <= 0:
        return ""
    return f"{round(seconds / whole_s, 2) + 0.0:.0%}"

"""A request's time in named, coloured parts: stretches to draw, and rows that add up.

Colours are the names of CSS variables in assets/style.css.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from phasewise.core import latency
from phasewise.core.latency import PartTime
from phasewise.core.timeline import GatewayTimes, Part, Source, Timeline
from phasewise.core.units import duration
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.finding import FactSource
from phasewise.report.markup import Html, element, stacked, swatched, table, together


@dataclass(frozen=True, slots=True)
class PhaseStyle:
    """The name and the colour of a part of a request's time."""

    name: str
    colour: str


_NAMES = {
    Part.CLIENT_LAG: "generator lag",
    Part.GATEWAY_WAIT: "gateway",
    Part.CACHE_LOOK_UP: "cache lookup",
    Part.EARLIER_ATTEMPTS: "earlier attempts",
    Part.STEP_IN_FLIGHT: "waiting for running step",
    Part.ENGINE_QUEUE: "engine queue",
    Part.PREFILL: "prefill",
    Part.PREFILL_OTHERS: "other requests' prefill",
    Part.KV_TRANSFER: "KV transfer",
    Part.DECODE: "decode",
}
PHASES = {part: PhaseStyle(name, f"--{part.value.replace('_', '-')}") for part, name in _NAMES.items()}
"""Every part in the order it comes in a request."""
UNEXPLAINED = PhaseStyle("unexplained", "--unexplained")
IN_ORDER = (*(PHASES[part] for part in Part if part is not Part.DECODE), UNEXPLAINED, PHASES[Part.DECODE])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time of one phase, in seconds since the request's intended arrival."""

    phase: PhaseStyle
    start_s: float
    seconds: float


def stretches(timeline: Timeline) -> tuple[Stretch, ...]:
    """The request end to end.

    For most parts only their duration is known, so the parts of TTFT are drawn one after the other in their
    usual order, and the unexplained part fills the time until the first token. A request that was never
    answered is unexplained from its sending on.
    """
    first_s, breakdown = latency.ttft_s(timeline), latency.ttft_breakdown(timeline)
    if breakdown is None:
        parts = [(span.part, span.duration_s) for span in timeline.spans]
    else:
        parts = [(entry.part, entry.seconds) for entry in breakdown.parts]
    at_s, until_s, found = 0.0, timeline.ended_s if first_s is None else first_s, []
    for part, seconds in parts:
        # Two sources may report the same time; the bar still ends at the first token.
        shown_s = min(seconds, until_s - at_s)
        if shown_s > 0:
            found.append(Stretch(PHASES[part], at_s, shown_s))
            at_s += shown_s
    if until_s > at_s:
        found.append(Stretch(UNEXPLAINED, at_s, until_s - at_s))
    if first_s is not None:
        end_s = latency.e2e_s(timeline) or timeline.content_times_s[-1]
        found.append(Stretch(PHASES[Part.DECODE], first_s, max(end_s - first_s, 0.0)))
    return tuple(found)


# --- The parts of the mean TTFT and of the mean token time, as rows with source and colour.

SMALL_SHARE = 0.01
"""Rows with a smaller share than this are merged."""
SEEN_SHARE = 0.005
"""Less than this is shown as 0%, so it is left out."""
OWN_PREFILL = "prefill, own tokens"
NO_CLOCK = "not measured"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One part of a mean latency."""

    name: str
    seconds: float
    source: str
    colour: str


def start_rows(start: StartSummary) -> tuple[LedgerRow, ...]:
    """The mean TTFT of the requests whose engine reported its phases."""
    return with_rest(rows_of_parts(start.parts), start.unexplained_s)


def rows_of_parts(parts: Iterable[PartTime]) -> tuple[LedgerRow, ...]:
    """The parts of a TTFT, of one request or of a mean."""
    rows = []
    for entry in parts:
        phase = PHASES[entry.part]
        name = phase.name
        if entry.part is Part.PREFILL:
            # Only the step record separates a prompt's own tokens from those of others in the same steps.
            own = entry.source is Source.STEP_RECORD
            name = OWN_PREFILL if own else "prefill (own and others', not separable)"
        rows.append(LedgerRow(name, entry.seconds, entry.source.value.replace("_", " "), phase.colour))
    return tuple(rows)


def with_rest(rows: Iterable[LedgerRow], rest_s: float) -> tuple[LedgerRow, ...]:
    """The rows, and the unexplained part last.

    Where two clocks measured the same time, the rows come to more than the whole: they are made shorter in
    proportion, so that they add up and nothing negative is left.
    """
    text, measured_s = tuple(rows), 0.0
    if rest_s < 0 and (measured_s := sum(row.seconds for row in text)) > 0:
        text = tuple(replace(row, seconds=row.seconds * (1 + rest_s / measured_s)) for row in text)
    return (*text, LedgerRow(UNEXPLAINED.name, max(0.0, rest_s), NO_CLOCK, UNEXPLAINED.colour))


def with_gateway_stages(rows: Iterable[LedgerRow], times: GatewayTimes | None) -> Iterator[LedgerRow]:
    """The rows of one request; the gateway's is split into its stages, and placing and connecting."""
    for row in rows:
        if times is None or row.name != PHASES[Part.GATEWAY_WAIT].name:
            yield row
            continue
        left_s = row.seconds
        for stage, seconds in (*times.stages, ("placing, connecting", left_s)):
            yield replace(row, name=f"{row.name}: {stage}", seconds=min(seconds, left_s))
            left_s -= min(seconds, left_s)


def stream_rows(stream: StreamSummary) -> tuple[LedgerRow, ...]:
    """The mean time of a token after the first, split as far as the evidence allows."""
    if stream.ledger is not None:
        return token_rows(stream.ledger, recorded=stream.step_timed > 0)
    if stream.step_s is None:
        return ()
    source = FactSource.STEP_RECORD if stream.step_timed else FactSource.COUNTERS
    step_s = min(stream.step_s, stream.tpot_mean_s)
    prompts_s = min(stream.chunk_excess_s or 0.0, stream.tpot_mean_s - step_s)
    rows = (
        LedgerRow("decode steps", step_s, source, "--decode"),
        LedgerRow("other requests' prefill", prompts_s, source, "--prefill-others"),
    )
    return with_rest(rows, stream.tpot_mean_s - step_s - prompts_s)


def token_rows(ledger: TokenLedger, *, recorded: bool) -> tuple[LedgerRow, ...]:
    """The parts of a stream's time, per token or in all, and the unexplained one last.

    What is not `recorded` step by step is what the engine reported with the answer.
    """
    steps, fit = FactSource.STEP_RECORD if recorded else FactSource.ENGINE_REPORT, FactSource.FIT
    split = (
        ("decode step at batch 1", ledger.floor_s, fit, "--decode"),
        ("added by batching", ledger.batch_s, fit, "--decode-fill"),
        ("reading the KV cache", ledger.kv_read_s, fit, "--kv-transfer"),
    )
    whole = (("decode steps", ledger.step_s, steps, "--decode"),)
    known = all(seconds is not None for _, seconds, _, _ in split)
    rows = (
        *(split if known else whole),
        ("other requests' prefill", ledger.prompts_s, steps, "--prefill-others"),
        ("preempted", ledger.preempted_s, steps, "--earlier-attempts"),
        ("engine paused", ledger.paused_s, steps, "--client-lag"),
        ("client did not read", ledger.client_s, FactSource.GATEWAY, "--gateway-wait"),
        ("cold steps", ledger.cold_s, steps, "--step-in-flight"),
    )
    text = (LedgerRow(name, seconds or 0.0, source, colour) for name, seconds, source, colour in rows)
    return with_rest(text, ledger.unexplained_s)


def worth_a_row(rows: tuple[LedgerRow, ...], whole_s: float) -> tuple[LedgerRow, ...]:
    """The visible rows, the smaller ones merged into one row, and the unexplained part last."""
    *text, unexplained = rows
    small = [row for row in text if abs(row.seconds) < SMALL_SHARE * whole_s]
    seen = [row for row in text if row not in small]
    small_s = sum(row.seconds for row in small)
    if abs(small_s) >= SEEN_SHARE * whole_s:
        names = "; ".join(row.name for row in small if row.seconds)
        seen.append(LedgerRow("smaller parts", small_s, names, UNEXPLAINED.colour))
    return (*seen, unexplained)


def share_in_words(seconds: float, whole_s: float) -> str:
    """A row's share of the whole in per cent; a share that rounds to zero has no sign."""
    if whole_s <= 0:
        return ""
    return f"{round(seconds / whole_s, 2) + 0.0:.0%}"


DUST_SHARE = 1e-4
"""A part with a smaller share than this gets no row on the page."""


def ledger(
    rows: Sequence[LedgerRow],
    whole_s: float,
    question: str,
    caption: str,
    *,
    total: str = "mean",
    lead: str = "",
) -> Html:
    """A latency as one bar and the table that it adds up to; by default a mean. `lead` is its figures."""
    drawn_s = sum(max(row.seconds, 0.0) for row in rows)
    bar = stacked([(row.name, row.seconds, row.colour) for row in rows], drawn_s, question)
    body = [
        (
            together((swatched(row.colour, row.name), element("small", row.source))),
            duration(row.seconds),
            share_in_words(row.seconds, whole_s),
        )
        for row in rows
        if abs(row.seconds) >= DUST_SHARE * whole_s or row.name == UNEXPLAINED.name
    ]
    last = (element("strong", total), element("strong", duration(whole_s)), "")
    return element(
        "figure",
        element("h3", question),
        *([element("p", lead, class_="under")] if lead else []),
        *((bar, table(("part and source", "time", "share"), [*body, last])) if rows else ()),
        element("figcaption", caption),
    )

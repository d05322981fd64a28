"""A request's placement as text: the options, the expected and the measured times."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.caching import CacheNote
from phasewise.core.decision import Option
from phasewise.core.latency import ttft_breakdown
from phasewise.core.timeline import Attempt, Placement, Timeline
from phasewise.core.units import NONE, duration, long_duration
from phasewise.diagnosis.analysis.expectations import Held, held, taken_option

NO_OPTIONS = (
    "nothing to explain: one kind of worker. Options are compared with `kv_transfer.when: auto` in fleets "
    "with prefill and decode workers, once the speed of their engines is known."
)


def render(timeline: Timeline) -> RenderableType:
    """The whole explanation, the decision first."""
    parts: list[RenderableType] = [_head(timeline)]
    placement = timeline.placement
    if timeline.from_cache:
        parts.append(Text("No worker was asked: the answer came from the cache."))
        return Group(*parts, *_breakdown(timeline))
    if placement is not None and placement.options:
        parts += [_options(placement), *_tokens(timeline)]
    else:
        parts.append(Text(NO_OPTIONS))
    return Group(*parts, _expectations(timeline), _attempts(timeline), *_breakdown(timeline))


def _head(timeline: Timeline) -> Text:
    head = f"request {timeline.request_id}, {timeline.model}: {timeline.outcome}"
    if timeline.placement is not None:
        head += f"\n{timeline.placement.policy}: {timeline.placement.reason}"
    if timeline.cache is not None:
        head += f"\nanswer cache: {_cache(timeline.cache)}"
    return Text(head)


def _cache(note: CacheNote) -> str:
    described = [note.result.replace("_", " ")]
    if note.reason is not None:
        described.append(note.reason.replace("_", " "))
    if note.similarity is not None:
        described.append(f"similarity {note.similarity:.3f}")
    if note.age_s is not None:
        described.append(f"made {long_duration(note.age_s)} before")
    if note.saved_start_s is not None and note.saved_stream_s is not None:
        start, stream = duration(note.saved_start_s), duration(note.saved_stream_s)
        described.append(f"which took {start} to start and {stream} to stream")
    return ", ".join(described)


def _options(placement: Placement) -> Table:
    table = Table(title="Options, in seconds", title_justify="left")
    table.add_column("option", overflow="fold")
    for column in ("wait", "prefill", "KV transfer", "decode", "others", "cost"):
        table.add_column(column, justify="right")
    for index, option in enumerate(placement.options):
        terms = option.terms
        seconds = (
            terms.wait_s,
            terms.prefill_s,
            terms.kv_transfer_s,
            terms.decode_s,
            terms.delay_s,
            terms.cost_s,
        )
        table.add_row(("* " if index == 0 else "  ") + route(option), *(f"{it:.3f}" for it in seconds))
    return table


def route(option: Option) -> str:
    """The workers for prefill and decode."""
    return f"{option.prefill.name} > {option.worker.name}" if option.prefill else option.worker.name


def _tokens(timeline: Timeline) -> list[Text]:
    option = taken_option(timeline)
    if option is None:
        return [Text("The option marked * failed, and another one served the request.")]
    counted = [
        ("prompt", option.prompt_tokens, timeline.prompt_tokens),
        ("cached", option.cached_tokens, timeline.cached_tokens),
    ]
    described = [
        f"{name} {expected} expected, {_or_unknown(actual)} reported" for name, expected, actual in counted
    ]
    return [Text(f"tokens: {'; '.join(described)}")]


def _or_unknown(tokens: int | None) -> str:
    return "none" if tokens is None else str(tokens)


def _expectations(timeline: Timeline) -> Table:
    table = Table(title="Expected and measured", title_justify="left")
    table.add_column("term")
    for column in ("expected", "measured", "off"):
        table.add_column(column, justify="right")
    for row in held(timeline):
        table.add_row(row.name, duration(row.expected_s), duration(row.measured_s), _off(row))
    return table


def _off(row: Held) -> str:
    if row.expected_s is None or row.measured_s is None:
        return NONE
    off_s = row.measured_s - row.expected_s
    return f"{'+' if off_s > 0 else ''}{duration(off_s)}"


def _attempts(timeline: Timeline) -> Table:
    table = Table("attempt", "worker", "outcome", title="Attempts", title_justify="left")
    for column in ("from", "to"):
        table.add_column(column, justify="right")
    for attempt in timeline.attempts:
        table.add_row(
            attempt.kind.replace("_", " "),
            attempt.worker.name,
            _outcome(attempt),
            duration(attempt.started_s),
            duration(attempt.ended_s),
        )
    return table


def _outcome(attempt: Attempt) -> str:
    return f"{attempt.outcome} ({attempt.note})" if attempt.note else str(attempt.outcome)


def _breakdown(timeline: Timeline) -> list[RenderableType]:
    breakdown = ttft_breakdown(timeline)
    if breakdown is None:
        return []
    table = Table("part", "seen by", title="Parts of TTFT", title_justify="left")
    table.add_column("took", justify="right")
    for entry in breakdown.parts:
        table.add_row(entry.part.replace("_", " "), entry.source.replace("_", " "), duration(entry.seconds))
    table.add_row("unexplained", "", duration(breakdown.unexplained_s))
    return [table]

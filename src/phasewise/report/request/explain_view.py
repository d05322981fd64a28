"""One request as text: where its time went, why it went to its engine, and its attempts if one failed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.caching import CacheNote
from phasewise.core.decision import Option
from phasewise.core.timeline import Attempt, Outcome, Placement, Timeline
from phasewise.core.units import duration, long_duration
from phasewise.diagnosis.analysis.expectations import held, taken_option
from phasewise.diagnosis.analysis.request_life import RequestLife
from phasewise.report.console import text_table
from phasewise.report.request.list_view import moment, workers
from phasewise.report.request.words import ledger_of, where_the_time_went
from phasewise.report.time_parts import LedgerRow, share_in_words


def render(life: RequestLife, missing: Sequence[str] = ()) -> RenderableType:
    """The whole explanation. `missing` says why there is no step record."""
    timeline = life.timeline
    parts: list[RenderableType] = [Text(where_the_time_went(life)), Text(about(timeline))]
    if timeline.cache is not None:
        parts.append(Text(f"answer cache: {_cache(timeline.cache)}"))
    parts += [Text(""), _ledger(life)]
    if missing and not timeline.from_cache:
        parts.append(Text(f"no step record: {'; '.join(missing)}"))
    placement = timeline.placement
    if placement is not None and placement.options:
        parts += [
            Text(""),
            Text(f"routing by {placement.policy}: {placement.reason}"),
            _options(placement),
            *_tokens(timeline),
        ]
        parts += _expectations(timeline)
    if len(timeline.attempts) > 1 or any(
        attempt.outcome is not Outcome.SUCCEEDED for attempt in timeline.attempts
    ):
        parts.append(_attempts(timeline))
    return Group(*parts)


def about(timeline: Timeline) -> str:
    """Which request this is: its ids, its model, its worker, its tokens, how it ended."""
    where = f" on {served}" if (served := workers(timeline)) else ""
    model = timeline.model or "no known model"
    facts = [f"{moment(timeline)}, {model}{where}", timeline.outcome.replace("_", " ")]
    if timeline.prompt_tokens is not None:
        cached = f", {timeline.cached_tokens:,} of them cached" if timeline.cached_tokens else ""
        facts.append(f"{timeline.prompt_tokens:,} prompt tokens{cached}")
    if timeline.output_tokens is not None:
        facts.append(f"{timeline.output_tokens:,} output tokens")
    if timeline.client_request_id is not None:
        facts.append(f"the client's id {timeline.client_request_id}")
    return f"request {timeline.request_id}: {'; '.join(facts)}"


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


def _ledger(life: RequestLife) -> Table:
    found = ledger_of(life)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column("part", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("seen by", style="dim", no_wrap=True)

    def group(title: str, rows: Sequence[LedgerRow], seconds: float) -> None:
        table.add_row(title, duration(seconds), share_in_words(seconds, found.whole_s), style="bold")
        for row in rows:
            share = share_in_words(row.seconds, found.whole_s)
            table.add_row(f"  {row.name}", duration(row.seconds), share, row.source)

    first = "until the first token" if life.timeline.content_times_s else "until it ended"
    group(first, found.start, found.start_s)
    if found.stream:
        group("from the first token to the last", found.stream, found.stream_s)
    table.add_row("in all", duration(found.whole_s), "100%", style="bold")
    return table


def _options(placement: Placement) -> Table:
    heads = ("option", "wait", "prefill", "KV transfer", "decode", "others", "cost")
    table = text_table("Options, in seconds", heads)
    table.columns[0].overflow = "fold"
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
        table.add_row(
            ("* " if index == 0 else "  ") + route(option), *(f"{term_s:.3f}" for term_s in seconds)
        )
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
        f"{name} {expected} expected, {'none' if actual is None else actual} reported"
        for name, expected, actual in counted
    ]
    return [Text(f"tokens: {'; '.join(described)}")]


def _expectations(timeline: Timeline) -> list[Table]:
    """The terms that were both expected and measured."""
    both = [row for row in held(timeline) if row.expected_s is not None and row.measured_s is not None]
    table = text_table("Expected and measured", ("term", "expected", "measured", "off"))
    for row in both:
        off_s = (row.measured_s or 0.0) - (row.expected_s or 0.0)
        off = f"{'+' if off_s > 0 else ''}{duration(off_s)}"
        table.add_row(row.name, duration(row.expected_s), duration(row.measured_s), off)
    return [table] if both else []


def _attempts(timeline: Timeline) -> Table:
    table = text_table("Attempts", ("attempt", "worker", "outcome", "from", "to"), words=3)
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
    outcome = attempt.outcome.replace("_", " ")
    return f"{outcome} ({attempt.note})" if attempt.note else outcome

"""A request's placement for people: what each way would have taken, what was expected and what came of it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.diagnosis.expectations import Held, held, taken_option
from phasewise.model.caching import CacheNote
from phasewise.model.decision import Option
from phasewise.model.latency import ttft_breakdown
from phasewise.model.timeline import Attempt, Placement, Timeline

NO_OPTIONS = (
    "No ways were priced for this request: that is done by `hand_over.when: auto` in fleets with prefill and "
    "decode workers, once their pace is known."
)


def render(timeline: Timeline) -> RenderableType:
    """Everything there is to tell, the decision first."""
    parts: list[RenderableType] = [_head(timeline)]
    placement = timeline.placement
    if timeline.from_cache:
        parts.append(Text("No worker was asked: the answer was there."))
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
    told = [note.result.replace("_", " ")]
    if note.reason is not None:
        told.append(note.reason.replace("_", " "))
    if note.similarity is not None:
        told.append(f"similarity {note.similarity:.3f}")
    if note.age_s is not None:
        told.append(f"made {note.age_s:.0f} s before")
    if note.saved_start_s is not None and note.saved_stream_s is not None:
        told.append(
            f"which took {note.saved_start_s:.3f} s to start and {note.saved_stream_s:.3f} s to stream"
        )
    return ", ".join(told)


def _options(placement: Placement) -> Table:
    table = Table(title="Ways it had, in seconds", title_justify="left")
    table.add_column("way", overflow="fold")
    for column in ("wait", "prefill", "hand-over", "decode", "others", "cost"):
        table.add_column(column, justify="right")
    for index, option in enumerate(placement.options):
        terms = option.terms
        seconds = (
            terms.wait_s,
            terms.prefill_s,
            terms.hand_over_s,
            terms.decode_s,
            terms.delay_s,
            terms.cost_s,
        )
        table.add_row(("* " if index == 0 else "  ") + route(option), *(f"{it:.3f}" for it in seconds))
    return table


def route(option: Option) -> str:
    """Where the prompt would have been computed and the answer written."""
    return f"{option.prefill.name} > {option.worker.name}" if option.prefill else option.worker.name


def _tokens(timeline: Timeline) -> list[Text]:
    option = taken_option(timeline)
    if option is None:
        return [Text("The way marked * failed, and the request was served by another.")]
    counted = [
        ("prompt", option.prompt_tokens, timeline.prompt_tokens),
        ("cached", option.cached_tokens, timeline.cached_tokens),
    ]
    told = [
        f"{name} {expected} expected, {_or_unknown(actual)} reported" for name, expected, actual in counted
    ]
    return [Text(f"tokens: {'; '.join(told)}")]


def _or_unknown(tokens: int | None) -> str:
    return "none" if tokens is None else str(tokens)


def _expectations(timeline: Timeline) -> Table:
    table = Table(title="Expected and measured", title_justify="left")
    table.add_column("term")
    for column in ("expected", "measured", "off"):
        table.add_column(column, justify="right")
    for row in held(timeline):
        table.add_row(row.name, _seconds(row.expected_s), _seconds(row.measured_s), _off(row))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _off(row: Held) -> str:
    if row.expected_s is None or row.measured_s is None:
        return "-"
    return f"{row.measured_s - row.expected_s:+.3f} s"


def _attempts(timeline: Timeline) -> Table:
    table = Table("attempt", "worker", "outcome", title="What was done", title_justify="left")
    for column in ("from", "to"):
        table.add_column(column, justify="right")
    for attempt in timeline.attempts:
        table.add_row(
            attempt.kind.replace("_", " "),
            attempt.worker.name,
            _outcome(attempt),
            _seconds(attempt.started_s),
            _seconds(attempt.ended_s),
        )
    return table


def _outcome(attempt: Attempt) -> str:
    return f"{attempt.outcome} ({attempt.note})" if attempt.note else str(attempt.outcome)


def _breakdown(timeline: Timeline) -> list[RenderableType]:
    breakdown = ttft_breakdown(timeline)
    if breakdown is None:
        return []
    table = Table("part", "seen by", title="Where the time to the first token went", title_justify="left")
    table.add_column("took", justify="right")
    for entry in breakdown.parts:
        table.add_row(entry.part.replace("_", " "), entry.source.replace("_", " "), _seconds(entry.seconds))
    table.add_row("unexplained", "", _seconds(breakdown.residual_s))
    return [table]

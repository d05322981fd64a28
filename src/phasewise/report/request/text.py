"""Requests as text: a line each in a table that fits the screen, or one of them explained."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.caching import CacheNote
from phasewise.core.latency import e2e_s, longest_stall_s, took_s, tpot_s, ttft_s
from phasewise.core.timeline import AttemptKind, Outcome, Placement, Timeline
from phasewise.core.units import count, duration, long_duration, milliseconds, number
from phasewise.diagnosis.analysis.expectations import held, taken_option
from phasewise.diagnosis.analysis.request_life import RequestLife
from phasewise.report.console import text_table
from phasewise.report.request.words import ledger_of, short_id, where_the_time_went
from phasewise.report.time_parts import LedgerRow, share_in_words

NO_TENANT = "default"
LONGEST_ID = 36
"""The length of a UUID; of longer ids the beginning is shown."""

_TEXTS: dict[str, Callable[[Timeline], str]] = {
    "tenant": lambda request: request.tenant,
    "model": lambda request: request.model,
    "worker": lambda request: workers(request) or "none",
}
_FIGURES: dict[str, Callable[[Timeline], str]] = {
    "prompt\ntokens": lambda request: count(request.prompt_tokens),
    "output\ntokens": lambda request: count(request.output_tokens),
    "TTFT\ns": lambda request: number(ttft_s(request)),
    "TPOT\nms": lambda request: milliseconds(tpot_s(request)),
    "stall\ns": lambda request: number(longest_stall_s(request)),
    "total\ns": lambda request: number(took_s(request)),
}
_LEFT_OUT_FIRST = [
    "model",
    "stall\ns",
    "tenant",
    "prompt\ntokens",
    "output\ntokens",
    "worker",
    "TPOT\nms",
    "why",
]
"""Columns that a narrow screen does without: a cut figure would be a wrong one."""


def render_list(
    timelines: Sequence[Timeline], headline: str, width: int, ranked_by: str | None = None
) -> RenderableType:
    """The requests in the order given. A text that all have in common stands in the headline instead.

    The column that they are `ranked_by` is always shown.
    """
    columns, common = _columns(timelines)
    left_out = _leave_out(columns, width, ranked_by)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in _FIGURES else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    lines: list[RenderableType] = [Text("; ".join([headline, *common])), table]
    if left_out:
        names = ", ".join(name.partition("\n")[0] for name in left_out)
        lines.append(Text(f"Left out to fit {width} columns: {names}. A wider screen or --json shows them."))
    return Group(*lines)


def _columns(timelines: Sequence[Timeline]) -> tuple[dict[str, list[str]], list[str]]:
    """The cells of each column, and what all requests have in common."""
    texts = {name: [text_of(request) for request in timelines] for name, text_of in _TEXTS.items()}
    # A request that was rejected before its body was read has no model.
    known = {name: {text for text in cells if text} for name, cells in texts.items()}
    common = [f"{name} {next(iter(values))}" for name, values in known.items() if len(values) == 1]
    columns = {
        "id": shown_ids(timelines),
        f"arrived\n{time.strftime('%Z')}": _moments(timelines),
        **{name: cells for name, cells in texts.items() if len(known[name]) > 1},
        **{name: [figure(request) for request in timelines] for name, figure in _FIGURES.items()},
        "outcome": [outcome(request) for request in timelines],
    }
    if any(request.reason for request in timelines):
        columns["why"] = [request.reason or "" for request in timelines]
    return columns, [words for words in common if words != f"tenant {NO_TENANT}"]


def _leave_out(columns: dict[str, list[str]], width: int, ranked_by: str | None) -> list[str]:
    """Remove columns until the table fits, and name them."""
    wide = {name: max(map(len, (*name.split("\n"), *cells))) + 1 for name, cells in columns.items()}
    left_out: list[str] = []
    for name in _LEFT_OUT_FIRST:
        if sum(wide.values()) - 1 <= width:
            break
        if name.partition("\n")[0].lower() == ranked_by:
            continue
        if wide.pop(name, None) is not None:
            del columns[name]
            left_out.append(name)
    return left_out


def shown_ids(timelines: Sequence[Timeline]) -> list[str]:
    """The clients' own ids, which people know; the gateway's where there is none or several look the same."""
    known = [request.client_request_id or "" for request in timelines]
    shown = [any_id if len(any_id) <= LONGEST_ID else f"{any_id[: LONGEST_ID - 3]}..." for any_id in known]
    seen = Counter(shown)
    return [
        client_id if client_id and seen[client_id] == 1 else short_id(request.request_id)
        for client_id, request in zip(shown, timelines, strict=True)
    ]


def _moments(timelines: Sequence[Timeline]) -> list[str]:
    """When each arrived, in local time; with the date if one of them is not from today."""
    days = {time.strftime("%F", time.localtime(request.started_unix_s)) for request in timelines}
    form = "%H:%M:%S" if days <= {time.strftime("%F")} else "%m-%d %H:%M:%S"
    return [time.strftime(form, time.localtime(request.started_unix_s)) for request in timelines]


def workers(timeline: Timeline) -> str:
    """The worker that began its answer, and those that went on with it; empty if none did."""
    began = timeline.serving_attempt
    went_on = [attempt for attempt in timeline.attempts if attempt.kind is AttemptKind.RESUMED]
    names = [attempt.worker.name for attempt in (began, *went_on) if attempt is not None]
    return ">".join(dict.fromkeys(names))


def moment(timeline: Timeline) -> str:
    """When a request arrived, in local time."""
    return time.strftime("%H:%M:%S", time.localtime(timeline.started_unix_s))


def outcome(timeline: Timeline) -> str:
    """How it ended, in a word or two."""
    words = {Outcome.SUCCEEDED: "ok", Outcome.UNFINISHED: "running"}
    return words.get(timeline.outcome, timeline.outcome.replace("_", " "))


def record(timeline: Timeline) -> dict[str, Any]:
    return {
        "id": timeline.request_id,
        "client_id": timeline.client_request_id,
        "at_unix_s": timeline.started_unix_s,
        **{name: text_of(timeline) for name, text_of in _TEXTS.items()},
        "prompt_tokens": timeline.prompt_tokens,
        "output_tokens": timeline.output_tokens,
        "ttft_s": ttft_s(timeline),
        "tpot_s": tpot_s(timeline),
        "longest_stall_s": longest_stall_s(timeline),
        "e2e_s": e2e_s(timeline),
        "total_s": took_s(timeline),
        "outcome": timeline.outcome,
        "reason": timeline.reason,
    }


# --- One request: where its time went, why it went to its engine, and its attempts if one failed.


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
    failed = any(attempt.outcome is not Outcome.SUCCEEDED for attempt in timeline.attempts)
    if failed or len(timeline.attempts) > 1:
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
        terms, name = option.terms, option.worker.name
        seconds = (terms.wait_s, terms.prefill_s, terms.kv_transfer_s, terms.decode_s, terms.delay_s)
        route = f"{option.prefill.name} > {name}" if option.prefill else name
        cells = (f"{term_s:.3f}" for term_s in (*seconds, terms.cost_s))
        table.add_row(("  " if index else "* ") + route, *cells)
    return table


def _tokens(timeline: Timeline) -> list[Text]:
    option = taken_option(timeline)
    if option is None:
        return [Text("The option marked * failed, and another one served the request.")]
    prompt, cached = (
        "none" if reported is None else reported
        for reported in (timeline.prompt_tokens, timeline.cached_tokens)
    )
    return [
        Text(
            f"tokens: prompt {option.prompt_tokens} expected, {prompt} reported; "
            f"cached {option.cached_tokens} expected, {cached} reported"
        )
    ]


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
        kind, outcome = attempt.kind.replace("_", " "), attempt.outcome.replace("_", " ")
        ended = f"{outcome} ({attempt.note})" if attempt.note else outcome
        table.add_row(
            kind, attempt.worker.name, ended, duration(attempt.started_s), duration(attempt.ended_s)
        )
    return table

"""Requests as a table that fits the screen: a line each, and what they have in common above it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.latency import e2e_s, longest_stall_s, took_s, tpot_s, ttft_s
from phasewise.core.timeline import AttemptKind, Outcome, Timeline
from phasewise.core.units import count, milliseconds, number
from phasewise.report.request.words import short_id

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
_LEFT_OUT_FIRST = (
    "model",
    "stall\ns",
    "tenant",
    "prompt\ntokens",
    "output\ntokens",
    "worker",
    "TPOT\nms",
    "why",
)
"""Columns that a narrow screen does without: a cut figure would be a wrong one."""


def render(
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
    return {
        "id": shown_ids(timelines),
        f"arrived\n{time.strftime('%Z')}": _moments(timelines),
        **{name: cells for name, cells in texts.items() if len(known[name]) > 1},
        **{name: [figure(request) for request in timelines] for name, figure in _FIGURES.items()},
        "outcome": [outcome(request) for request in timelines],
        **(
            {"why": [request.reason or "" for request in timelines]}
            if any(request.reason for request in timelines)
            else {}
        ),
    }, [words for words in common if words != f"tenant {NO_TENANT}"]


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
    shown = [_cut(request.client_request_id or "") for request in timelines]
    seen = Counter(shown)
    return [
        client_id if client_id and seen[client_id] == 1 else short_id(request.request_id)
        for client_id, request in zip(shown, timelines, strict=True)
    ]


def _cut(any_id: str) -> str:
    return any_id if len(any_id) <= LONGEST_ID else f"{any_id[: LONGEST_ID - 3]}..."


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

"""The answer cache for people: what it did or would have done, whether that was right, and what to do next.

Figures are the gateway's own; what they mean is told in docs/reference/cache.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.bench.page.numbers import NONE, duration, share
from phasewise.caching.matching import Sort
from phasewise.cli.cache_advice import may_be_served, next_step, would
from phasewise.model.caching import CacheResult

Report = Mapping[str, Any]

RESULT_WORDS = {
    CacheResult.HIT_EXACT: "served: same request",
    CacheResult.HIT_SEMANTIC: "served: same meaning",
    CacheResult.JOINED: "served: same request under way",
    CacheResult.SHADOW_EXACT: "would serve: same request",
    CacheResult.SHADOW_SEMANTIC: "would serve: same meaning",
    CacheResult.EXPLORED: "near: model asked, to learn",
    CacheResult.GUARDED: "near: a guard forbade it",
    CacheResult.MISS: "not found",
    CacheResult.BYPASS: "not for a cache",
}
EXPLAINED = {
    CacheResult.HIT_EXACT: "It would be served: this very request was answered before.",
    CacheResult.HIT_SEMANTIC: "It would be served: a question of the same meaning was answered before.",
    CacheResult.EXPLORED: "The model would be asked, and its answer compared with a stored one, to learn.",
    CacheResult.GUARDED: "The model would be asked: a guard says that what is near means something else.",
    CacheResult.MISS: "The model would be asked: there is no kept answer to compare with.",
    CacheResult.BYPASS: "The model would be asked: such requests are neither kept nor served.",
}
NO_NEIGHBOURS = (
    "No kept answer was compared with it. Only requests that are alike but for the words of the last user "
    "turn share answers: give the system prompt (--system) and further fields (--field max_tokens=64) as "
    "your clients send them."
)
EXACT_ONLY = (
    "Only the very same request would be found: matches by meaning are off (gateway.cache.semantic), or the "
    "question is too long for them."
)
NOT_LEARNED_YET = (
    "The gateway has not read yet what was learned of matches by meaning, and serves none until it has: ask "
    "again in a moment."
)
SORT_WORDS = {
    Sort.FORM: "other form",
    Sort.CONTENT: "other words",
    Sort.DOUBTED: "doubted by a guard",
}
WHY_NOTHING_NEAR = {"exact_only": EXACT_ONLY, "not_learned_yet": NOT_LEARNED_YET}
TIERS = {"exact": "same request", "semantic": "same meaning"}
MOST_CELLS = 12


def render_report(report: Report) -> RenderableType:
    """The whole report, what to do next last."""
    parts: list[RenderableType] = [Text(_head(report))]
    if report["requests"]:
        parts.append(_results(report))
    if any(sum(counts.values()) for counts in report["judged"].values()):
        parts.append(_judged(report))
    parts += [Text(line) for line in _lines(report)]
    if report["cells"]:
        parts.append(_cells(report))
    return Group(*parts, Text(f"\nNext: {next_step(report, time.time())}"))


def _head(report: Report) -> str:
    matches = "matches by meaning too" if report["semantic"] else "the very same requests only"
    mode = "shadow mode: nothing is served" if report["mode"] == "shadow" else "answers are served"
    entries = report["entries"]
    kept = f"{'?' if entries is None else f'{entries:,}'} {'answer' if entries == 1 else 'answers'} kept"
    store = "in Redis" if report["store"] == "redis" else "in the gateway's own memory"
    hours = duration_in_words(time.time() - report["since_unix_s"])
    return f"Answer cache, {mode}; {matches}; {kept} {store}.\n{report['requests']:,} requests in {hours}."


def duration_in_words(seconds: float) -> str:
    """A time that somebody waited, in the unit one would say."""
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def _results(report: Report) -> Table:
    table = Table(title="What became of requests", title_justify="left")
    table.add_column("")
    table.add_column("requests", justify="right")
    table.add_column("share", justify="right")
    table.add_column("why", overflow="fold")
    for result, words in RESULT_WORDS.items():
        if count := report["results"].get(result, 0):
            reasons = _reasons(report["reasons"].get(result, {}))
            table.add_row(words, f"{count:,}", share(count / report["requests"]), reasons)
    return table


def _reasons(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in ordered)


def _judged(report: Report) -> Table:
    table = Table(title="Stored answers beside what the model said", title_justify="left")
    table.add_column("")
    for column in ("right", "wrong", "no verdict"):
        table.add_column(column, justify="right")
    for tier, words in TIERS.items():
        counts = report["judged"].get(tier, {})
        if sum(counts.values()):
            table.add_row(words, *(f"{counts[verdict]:,}" for verdict in ("right", "wrong", "unknown")))
    return table


def _lines(report: Report) -> list[str]:
    lines = [_saved(report)]
    if report["look_up_s"] is not None:
        line = f"Looking took {_times(report['look_up_s'])}"
        embed_s = report["embed_s"]
        lines.append(line + (f", of that embedding {_times(embed_s)}." if embed_s is not None else "."))
    if report["dropped"]:
        lines.append(
            f"{report['dropped']:,} answers were not kept or judged: more came than could be dealt with."
        )
    if unfit := report["unfit"]:
        lines.append(
            f"{unfit:,} {'answer was' if unfit == 1 else 'answers were'} not fit to be kept: cut off by "
            "max_tokens, empty, refused, or more than text."
        )
    return lines


def _saved(report: Report) -> str:
    saved, verb = report["saved"], would(report, "Saved", "Would have saved")
    tokens = f"{saved['tokens']:,} tokens"
    if saved["tokens"] and not saved["start_s"] and not saved["stream_s"]:
        # Of plain replies, only an engine that reports its timings tells what each phase took.
        return f"{verb} {tokens}; how long their prefill and decode took is not known."
    start, stream = duration(saved["start_s"]), duration(saved["stream_s"])
    return f"{verb} {start} until first tokens (prefill), {stream} of streaming (decode), {tokens}."


def _times(quantiles: Mapping[str, float]) -> str:
    return f"{duration(quantiles['p50'])} (p99 {duration(quantiles['p99'])})"


def _cells(report: Report) -> Table:
    shown = report["cells"][:MOST_CELLS]
    left_out = len(report["cells"]) - len(shown)
    title = "What is proven of matches by meaning" + (
        f" (of {left_out} more, less is known)" if left_out else ""
    )
    table = Table("whose", "kind of match", title=title, title_justify="left")
    for column in ("right", "wrong"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for cell in shown:
        counts = f"{cell['right']:,}", f"{cell['wrong']:,}"
        table.add_row(cell["domain"], cell_words(cell["cell"]), *counts, _state(cell))
    return table


def cell_words(cell: str) -> str:
    """A kind of match in words: what differs, and how well such a change is known."""
    sort, _, maturity = cell.partition("/")
    return f"{SORT_WORDS[Sort(sort)]}, {maturity}" if sort in SORT_WORDS else cell


def _state(cell: Mapping[str, Any]) -> Text:
    if not may_be_served(cell["cell"]):
        return Text("only learned from")
    if cell["proven"]:
        return Text("proven", "green")
    return Text(f"{cell['missing']:,} more right")


def render_explanation(told: Mapping[str, Any]) -> RenderableType:
    """What would become of a question, then what is near it."""
    result = CacheResult(told["result"])
    reason = f" ({told['reason'].replace('_', ' ')})" if told["reason"] else ""
    head = Text(f"{result}{reason}: {EXPLAINED[result]}")
    if result is CacheResult.BYPASS or result is CacheResult.HIT_EXACT:
        return head
    if not told["neighbours"]:
        return Group(head, Text(WHY_NOTHING_NEAR.get(told["reason"], NO_NEIGHBOURS)))
    return Group(head, _neighbours(told["neighbours"]))


def _neighbours(neighbours: list[Mapping[str, Any]]) -> Table:
    table = Table(title="What is kept near it, nearest first", title_justify="left")
    table.add_column("similarity", justify="right")
    table.add_column("age", justify="right")
    table.add_column("what is known of it", overflow="fold")
    for it in neighbours:
        told = [*([f'"{it["question"]}"'] if it.get("question") else []), _known(it)]
        table.add_row(f"{it['similarity']:.3f}", duration_in_words(it["age_s"]), Text("\n".join(told)))
    return table


def _known(it: Mapping[str, Any]) -> str:
    if it["guard"] is not None:
        return f"guard {it['guard']}: {it['detail']}" if it.get("detail") else f"guard {it['guard']}"
    if it["cell"] is None:
        return NONE
    doubt = f" ({it['doubt']})" if it["doubt"] else ""
    evidence = f"{it['right']:,} right and {it['wrong']:,} wrong of its kind"
    return f"{cell_words(it['cell'])}{doubt}: {evidence}, {_state(it)}"

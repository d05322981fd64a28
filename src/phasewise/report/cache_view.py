"""The answer cache's report as text. docs/reference/cache.md defines the figures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import ceil
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.caching import CacheResult
from phasewise.core.units import NONE, duration, elapsed, long_duration, share
from phasewise.report.console import text_table
from phasewise.semantic_match.evidence import Maturity
from phasewise.semantic_match.matching import Sort

# --- The next step for an answer cache, from its report, in one sentence.

FEWEST_REQUESTS = 200
"""With fewer requests, the share that could be served is not reliable."""

Report = Mapping[str, Any]


def may_be_served(cell: str) -> bool:
    """Whether a proof would matter: only matches with a known kind of change are served."""
    return cell.rpartition("/")[2] == Maturity.KNOWN


def next_step(report: Report, now_unix_s: float) -> str:
    if report["degraded"]:
        return (
            f"part of the cache does not respond ({', '.join(report['degraded'])}), and requests bypass "
            "it. See the gateway's log for the reason; it recovers without a restart."
        )
    seen_s = now_unix_s - report["since_unix_s"]
    if not report["requests"]:
        return f"no requests in {elapsed(seen_s)}. Send traffic through the gateway, then run this again."
    return _serving(report) if report["mode"] == "serve" else _shadow(report)


def _shadow(report: Report) -> str:
    found = _share_found(report)
    if report["requests"] < FEWEST_REQUESTS:
        return (
            f"{report['requests']:,} requests are not enough to judge: run this again after "
            f"{FEWEST_REQUESTS:,}. So far {found} could have been served."
        )
    missing = _missing(report)
    if not _found(report):
        if missing:
            return f"none could have been served yet{missing}: keep shadow mode and run this again later."
        return (
            f"of {report['requests']:,} requests none could have been served. If that stays so, disable the "
            "cache: it saves nothing here."
        )
    described = f"shadow found that {found} of requests could be served from the cache"
    if report["wrong"] is not None and _found(report, "hit_semantic", "shadow_semantic"):
        return f"{described}, {_found_semantically(report)}"
    waits = f" Semantic matches are not proven yet{missing}." if missing else ""
    return f"{described}, all of them identical requests{_differing(report)}: set cache.mode: serve.{waits}"


def _found_semantically(report: Report) -> str:
    wrong = report["wrong"]
    if wrong["at_most"] is None:
        return "but none has been judged yet. Wait, or check the judge in the gateway's log."
    if wrong["at_most"] <= wrong["budget"]:
        return f"{_judged_words(report)}: set cache.mode: serve."
    limit = f"cache.semantic.max_wrong_answers ({wrong['budget']:.1%})"
    if wrong["share"] > wrong["budget"]:
        return (
            f"{_judged_words(report)}, more than {limit}: keep shadow mode, and use `phasewise "
            "cache explain` to see which questions are matched."
        )
    return (
        f"{_judged_words(report)}. Their kinds of match were proven before; wait until these matches alone "
        f"show that they stay within {limit}, or set cache.mode: serve now."
    )


def _serving(report: Report) -> str:
    described = f"{_share_found(report)} of requests were served from the cache"
    wrong = report["wrong"]
    if wrong is None:
        return f"{described}, all of them identical requests. No action is needed."
    if wrong["share"] is None:
        return f"{described}. No semantic match has been checked yet{_missing(report)}. No action is needed."
    if wrong["share"] > wrong["budget"]:
        return (
            f"{described}, {_judged_words(report)}: more than cache.semantic.max_wrong_answers "
            f"({wrong['budget']:.1%}). {_what_ends(report)} Purge wrong answers, and check "
            "whether the judge is right."
        )
    return f"{described}, {_judged_words(report)}. No action is needed."


def _what_ends(report: Report) -> str:
    """Whether kinds with wrong matches are still served. One wrong outcome alone does not end a proof."""
    concerned = [cell for cell in report["cells"] if may_be_served(cell["cell"]) and cell["wrong"]]
    if concerned and not any(cell["proven"] for cell in concerned):
        return "Kinds with wrong matches are no longer served."
    return "Kinds with wrong matches may still be served; one or two more wrong matches end that."


SERVED = ("hit_exact", "hit_semantic", "joined", "shadow_exact", "shadow_semantic")


def _found(report: Report, *results: str) -> int:
    """How many requests were or could be served, or had one of these results."""
    return sum(report["results"].get(result, 0) for result in results or SERVED)


def _share_found(report: Report) -> str:
    return share(_found(report) / report["requests"])


def _differing(report: Report) -> str:
    """A note that the model answers identical requests differently."""
    counts = report["judged"]["exact"]
    judged = counts["right"] + counts["wrong"]
    if not counts["wrong"]:
        return ""
    return f" (the model answered {counts['wrong']:,} of {judged:,} differently the second time)"


def _judged_words(report: Report) -> str:
    wrong = report["wrong"]
    judged = wrong["right"] + wrong["wrong"]
    count = f"{wrong['wrong']:,}" if wrong["wrong"] else "none"
    return (
        f"{count} wrong of {judged:,} judged (at most {ceil(wrong['at_most'] * 1e3) / 10:.1f}% with "
        f"{wrong['confidence']:.0%} confidence)"
    )


def _missing(report: Report) -> str:
    """How far away the first proof is, if there is none and some matches were right."""
    cells = [cell for cell in report["cells"] if may_be_served(cell["cell"]) and cell["right"]]
    if not cells or any(cell["proven"] for cell in cells):
        return ""
    nearest = min(cells, key=lambda cell: cell["missing"])
    return f" (the first proof needs {nearest['missing']:,} more right answers in a row)"


RESULT_WORDS = {
    CacheResult.HIT_EXACT: "served: identical request",
    CacheResult.HIT_SEMANTIC: "served: semantic match",
    CacheResult.JOINED: "served: identical request in progress",
    CacheResult.SHADOW_EXACT: "would serve: identical request",
    CacheResult.SHADOW_SEMANTIC: "would serve: semantic match",
    CacheResult.EXPLORED: "similar: model asked, to learn",
    CacheResult.GUARDED: "similar: rejected by a guard",
    CacheResult.MISS: "not found",
    CacheResult.BYPASS: "not cacheable",
}
EXPLAINED = {
    CacheResult.HIT_EXACT: "It would be served from the cache: an identical request was answered before.",
    CacheResult.HIT_SEMANTIC: "It would be served from the cache: a question with the same meaning was "
    "answered before.",
    CacheResult.EXPLORED: "The model would be asked, and its answer compared with a stored one, to learn.",
    CacheResult.GUARDED: "The model would be asked: a guard says that the similar question means something "
    "else.",
    CacheResult.MISS: "The model would be asked: there is no stored answer to compare with.",
    CacheResult.BYPASS: "The model would be asked: such requests are not cacheable.",
}
NO_NEIGHBOURS = (
    "No stored answer was compared with it. Only requests that are identical except for the last user "
    "message share answers: give the system prompt (--system) and other fields (--field max_tokens=64) as "
    "your clients send them."
)
EXACT_ONLY = (
    "Only an identical request would match: semantic matching is off (gateway.cache.semantic), or the "
    "question is too long for it."
)
NOT_LEARNED_YET = (
    "The gateway has not loaded yet what it learned about semantic matches, and serves none until then: run "
    "this again in a moment."
)
SORT_WORDS = {
    Sort.FORM: "different form",
    Sort.CONTENT: "different words",
    Sort.DOUBTED: "doubted by a guard",
}
WHY_NOTHING_NEAR = {"exact_only": EXACT_ONLY, "not_learned_yet": NOT_LEARNED_YET}
TIERS = {"exact": "identical request", "semantic": "semantic match"}
MOST_CELLS = 12


def render_report(report: Report) -> RenderableType:
    """The whole report; the next step comes last."""
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
    matches = "identical and semantic matches" if report["semantic"] else "identical requests only"
    mode = "shadow mode: nothing is served" if report["mode"] == "shadow" else "answers are served"
    entries = report["entries"]
    kept = f"{'?' if entries is None else f'{entries:,}'} {'answer' if entries == 1 else 'answers'} kept"
    store = "in Redis" if report["store"] == "redis" else "in the gateway's own memory"
    hours = long_duration(time.time() - report["since_unix_s"])
    return f"Answer cache, {mode}; {matches}; {kept} {store}.\n{report['requests']:,} requests in {hours}."


def _results(report: Report) -> Table:
    table = text_table("Outcomes of requests", ("", "requests", "share"))
    table.add_column("why", overflow="fold")
    for result, words in RESULT_WORDS.items():
        if count := report["results"].get(result, 0):
            reasons = sorted(report["reasons"].get(result, {}).items(), key=lambda reason: -reason[1])
            why = ", ".join(f"{reason.replace('_', ' ')} {times:,}" for reason, times in reasons)
            table.add_row(words, f"{count:,}", share(count / report["requests"]), why)
    return table


def _judged(report: Report) -> Table:
    table = text_table("Stored answers compared with the model's", ("", "right", "wrong", "no verdict"))
    for tier, words in TIERS.items():
        counts = report["judged"].get(tier, {})
        if sum(counts.values()):
            table.add_row(words, *(f"{counts[verdict]:,}" for verdict in ("right", "wrong", "unknown")))
    return table


def _lines(report: Report) -> list[str]:
    lines = [_saved(report)]
    if report["look_up_s"] is not None:
        embed_s = report["embed_s"]
        embedding = "" if embed_s is None else f", embedding {_times(embed_s)} of it"
        lines.append(f"Lookups took {_times(report['look_up_s'])}{embedding}.")
    if report["dropped"]:
        lines.append(
            f"{report['dropped']:,} answers were dropped without being stored or judged, because the queue "
            "was full."
        )
    if unfit := report["unfit"]:
        lines.append(
            f"{unfit:,} {'answer was' if unfit == 1 else 'answers were'} not stored: cut off by "
            "max_tokens, empty, rejected, or more than text."
        )
    return lines


def _saved(report: Report) -> str:
    saved, verb = report["saved"], "Would have saved" if report["mode"] == "shadow" else "Saved"
    tokens = f"{saved['tokens']:,} tokens"
    if saved["tokens"] and not saved["start_s"] and not saved["stream_s"]:
        # For replies that are not streamed, only the engine's own timings give the phases.
        return f"{verb} {tokens}; the time of their prefill and decode is unknown."
    start, stream = duration(saved["start_s"]), duration(saved["stream_s"])
    return f"{verb} {start} until first tokens (prefill), {stream} of streaming (decode), {tokens}."


def _times(quantiles: Mapping[str, float]) -> str:
    return f"{duration(quantiles['p50'])} (p99 {duration(quantiles['p99'])})"


def _cells(report: Report) -> Table:
    shown = report["cells"][:MOST_CELLS]
    left_out = len(report["cells"]) - len(shown)
    title = "Proofs for semantic matches" + (f" ({left_out} more have less evidence)" if left_out else "")
    table = text_table(title, ("whose", "kind of match", "right", "wrong"), words=2)
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
        return Text("learning only")
    if cell["proven"]:
        return Text("proven", "green")
    return Text(f"{cell['missing']:,} more right")


def render_explanation(described: Mapping[str, Any]) -> RenderableType:
    """What the cache would do with a question, then the similar stored questions."""
    result = CacheResult(described["result"])
    reason = f" ({described['reason'].replace('_', ' ')})" if described["reason"] else ""
    head = Text(f"{result}{reason}: {EXPLAINED[result]}")
    if result is CacheResult.BYPASS or result is CacheResult.HIT_EXACT:
        return head
    if not described["neighbours"]:
        return Group(head, Text(WHY_NOTHING_NEAR.get(described["reason"], NO_NEIGHBOURS)))
    return Group(head, _neighbours(described["neighbours"]))


def _neighbours(neighbours: list[Mapping[str, Any]]) -> Table:
    table = text_table("Similar stored questions, most similar first", ("similarity", "age"), words=0)
    table.add_column("evidence", overflow="fold")
    for neighbour in neighbours:
        question = f'"{neighbour["question"]}"\n' if neighbour.get("question") else ""
        similarity, age = f"{neighbour['similarity']:.3f}", long_duration(neighbour["age_s"])
        table.add_row(similarity, age, Text(f"{question}{_known(neighbour)}"))
    return table


def _known(neighbour: Mapping[str, Any]) -> str:
    if neighbour["guard"] is not None:
        detail = f": {neighbour['detail']}" if neighbour.get("detail") else ""
        return f"guard {neighbour['guard']}{detail}"
    if neighbour["cell"] is None:
        return NONE
    doubt = f" ({neighbour['doubt']})" if neighbour["doubt"] else ""
    evidence = f"{neighbour['right']:,} right and {neighbour['wrong']:,} wrong of its kind"
    return f"{cell_words(neighbour['cell'])}{doubt}: {evidence}, {_state(neighbour)}"

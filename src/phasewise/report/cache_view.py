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
from phasewise.core.units import counted, duration, elapsed, long_duration, share
from phasewise.report.console import text_table
from phasewise.semantic_match.evidence import Novelty

Report = Mapping[str, Any]

FEWEST_REQUESTS = 200
"""With fewer requests, the share that could be served is not reliable."""
MOST_REGIONS = 6

RESULT_WORDS = {
    CacheResult.HIT_EXACT: "served: identical request",
    CacheResult.HIT_ALIAS: "served: judged to ask the same",
    CacheResult.HIT_SEMANTIC: "served: semantic match",
    CacheResult.JOINED: "served: identical request in progress",
    CacheResult.SHADOW_EXACT: "would serve: identical request",
    CacheResult.SHADOW_ALIAS: "would serve: judged to ask the same",
    CacheResult.SHADOW_SEMANTIC: "would serve: semantic match",
    CacheResult.EXPLORED: "similar: model asked, then judged",
    CacheResult.GUARDED: "similar: rejected by a guard",
    CacheResult.MISS: "not found",
    CacheResult.BYPASS: "not cacheable",
}


# --- The next step for an answer cache, from its report, in one sentence.


def next_step(report: Report, now_unix_s: float) -> str:
    if report["degraded"]:
        return (
            f"part of the cache does not respond ({', '.join(report['degraded'])}), and requests bypass "
            "it. See the gateway's log for the reason; it recovers without a restart."
        )
    if not report["requests"]:
        seen = elapsed(now_unix_s - report["since_unix_s"])
        return f"no requests in {seen}. Send traffic through the gateway, then run this again."
    found = sum(count for result, count in report["results"].items() if CacheResult(result).found)
    described = share(found / report["requests"])
    if report["mode"] == "serve":
        return f"{described} of requests were served from the cache. {_semantic_state(report)}"
    if report["requests"] < FEWEST_REQUESTS:
        return (
            f"{report['requests']:,} requests are not enough to judge: run this again after "
            f"{FEWEST_REQUESTS:,}. So far {described} could have been served."
        )
    if not found:
        return (
            "no request could have been served yet. If that stays so, disable the cache: it saves nothing "
            f"here. {_semantic_state(report)}"
        )
    return f"{described} of requests could have been served: set cache.mode: serve. {_semantic_state(report)}"


def _semantic_state(report: Report) -> str:
    """Why semantic matches are served, or only exact hits."""
    semantic = report["semantic"]
    if semantic is None:
        return "Only identical requests are looked for."
    judge, budget = semantic["judge"], share(semantic["budget"])
    different = judge["different"]
    asked = different["right"] + different["wrong"]
    if judge["refuted"]:
        return (
            f"Only exact hits: the judge called {different['wrong']:,} of {asked:,} planted pairs equal that "
            f"differ, more than max_wrong_answers ({budget}). Name a better model in semantic.judge."
        )
    if not judge["trusted"]:
        return (
            f"Only exact hits: the judge may call up to {_percent(judge['wrong_yes_at_most'])} of pairs that "
            f"differ equal, after {counted(asked, 'planted one')}; {budget} is needed. Let it run on."
        )
    if any(region["proven"] for region in semantic["regions"]):
        return "Semantic matches are served where they are proven."
    missing = min((region["missing"] for region in semantic["regions"]), default=None)
    more = "" if missing is None else f" for want of about {missing:,} more right ones"
    return f"Aliases are served; semantic matches are not proven yet{more}."


# --- The report.


def render_report(report: Report) -> RenderableType:
    """The whole report; the next step comes last."""
    parts: list[RenderableType] = [Text(_head(report))]
    if report["requests"]:
        parts.append(_results(report))
    parts += [Text(line) for line in _lines(report)]
    if report["semantic"] is not None:
        parts += [Text(line) for line in _judge_lines(report["semantic"])]
        if report["semantic"]["regions"]:
            parts.append(_regions(report["semantic"]["regions"]))
    return Group(*parts, Text(f"\nNext: {next_step(report, time.time())}"))


def _head(report: Report) -> str:
    matches = "identical requests only" if report["semantic"] is None else "identical and semantic matches"
    mode = "shadow mode: nothing is served" if report["mode"] == "shadow" else "answers are served"
    entries = report["entries"]
    kept = "an unknown number of answers" if entries is None else counted(entries, "answer")
    store = "in Redis" if report["store"] == "redis" else "in the gateway's own memory"
    hours = long_duration(time.time() - report["since_unix_s"])
    return (
        f"Answer cache, {mode}; {matches}; {kept} kept {store}.\n{report['requests']:,} requests in {hours}."
    )


def _results(report: Report) -> Table:
    table = text_table("Outcomes of requests", ("", "requests", "share"))
    table.add_column("why", overflow="fold")
    for result, words in RESULT_WORDS.items():
        if count := report["results"].get(result, 0):
            reasons = sorted(report["reasons"].get(result, {}).items(), key=lambda reason: -reason[1])
            why = ", ".join(f"{reason.replace('_', ' ')} {times:,}" for reason, times in reasons)
            table.add_row(words, f"{count:,}", share(count / report["requests"]), why)
    return table


def _lines(report: Report) -> list[str]:
    lines = [_saved(report)]
    if report["look_up_s"] is not None:
        embed_s = report["embed_s"]
        embedding = "" if embed_s is None else f", embedding {_times(embed_s)} of it"
        lines.append(f"Lookups took {_times(report['look_up_s'])}{embedding}.")
    if report["dropped"]:
        lines.append(f"{report['dropped']:,} answers or matches were dropped: a queue was full.")
    if unfit := report["unfit"]:
        lines.append(
            f"{counted(unfit, 'answer')} could not be stored: cut off by max_tokens, empty, rejected, or "
            "more than text."
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


def _judge_lines(semantic: Report) -> list[str]:
    judge, judged, servable = semantic["judge"], semantic["judged"], semantic["servable"]
    different, equal = judge["different"], judge["equal"]
    lines = [
        f"The judge said yes to {judged['yes']:,} matches and no to {judged['no']:,}, and gave no verdict on "
        f"{judged['unknown']:,}. {semantic['aliases']:,} aliases are known.",
        f"Of planted pairs that differ it called {different['wrong']:,} of "
        f"{different['right'] + different['wrong']:,} equal (at most "
        f"{_percent(judge['wrong_yes_at_most'])}); of equal ones, {equal['wrong']:,} of "
        f"{equal['right'] + equal['wrong']:,} different.",
        f"It cost {counted(judge['calls'], 'request')} with {judge['prompt_tokens']:,} prompt tokens and "
        f"{duration(judge['busy_s'])}.",
    ]
    if servable["wrong_at_most"] is not None:
        lines.append(
            f"Of matches that could be served it rejected {servable['no']:,} of "
            f"{servable['yes'] + servable['no']:,}: at most {_percent(servable['wrong_at_most'])} are wrong "
            f"({semantic['confidence']:.0%} confidence; budget {share(semantic['budget'])})."
        )
    return lines


def _percent(value: float) -> str:
    """An upper bound, rounded up."""
    return f"{ceil(value * 1e3) / 10:.1f}%"


def _regions(regions: list[Report]) -> Table:
    left_out = len(regions) - MOST_REGIONS
    title = "Regions of matches" + (f" ({left_out} more have less evidence)" if left_out > 0 else "")
    table = text_table(title, ("whose", "verified", "similarity", "yes", "no"), words=1)
    table.add_column("state")
    for region in regions[:MOST_REGIONS]:
        more = "judge not tried yet" if region["missing"] is None else f"{region['missing']:,} more yes"
        state = Text("proven", "green") if region["proven"] else Text(more)
        known = f"{region['verified_at_least']}+ times"
        near = f"{region['similarity_at_least']:.2f}+" if region["similarity_at_least"] else "any"
        table.add_row(region["domain"], known, near, f"{region['yes']:,}", f"{region['no']:,}", state)
    return table


# --- What the cache would do with a question.

EXPLAINED = {
    CacheResult.HIT_EXACT: "It would be served from the cache: an identical request was answered before.",
    CacheResult.HIT_ALIAS: "It would be served from the cache: a judge found it to ask the same as another.",
    CacheResult.HIT_SEMANTIC: "It would be served from the cache: a question with the same meaning was "
    "answered before.",
    CacheResult.EXPLORED: "The model would be asked, and a judge whether a stored answer would have served.",
    CacheResult.GUARDED: "The model would be asked: a guard says that the similar question means something "
    "else.",
    CacheResult.MISS: "The model would be asked: no stored answer is near enough to compare with.",
    CacheResult.BYPASS: "The model would be asked: such requests are not cacheable.",
}
NO_NEIGHBOURS = (
    "No stored question is near enough. Only requests that are identical except for the last user message "
    "share answers: if one should be near, give the system prompt (--system) and other fields (--field "
    "max_tokens=64) as your clients send them."
)
WHY_NOTHING_NEAR = {
    "exact_only": "Only an identical request would match: semantic matching is off "
    "(gateway.cache.semantic), or the question is too long for it.",
    "not_learned_yet": "The gateway has not loaded yet what it learned about semantic matches, and serves "
    "none until then: run this again in a moment.",
}
CHANGE_WORDS = {
    Novelty.BARRED: "this change of words was wrong before",
    Novelty.NEW: "this change of words was not verified before",
    Novelty.KNOWN: "this change of words was right {} times in a row",
}


def render_explanation(described: Mapping[str, Any]) -> RenderableType:
    """What the cache would do with a question, then the similar stored questions."""
    result = CacheResult(described["result"])
    reason = f" ({described['reason'].replace('_', ' ')})" if described["reason"] else ""
    head = Text(f"{result}{reason}: {EXPLAINED[result]}")
    if result in {CacheResult.BYPASS, CacheResult.HIT_EXACT, CacheResult.HIT_ALIAS}:
        return head
    if not described["neighbours"]:
        return Group(head, Text(WHY_NOTHING_NEAR.get(described["reason"], NO_NEIGHBOURS)))
    return Group(head, _neighbours(described["neighbours"]))


def _neighbours(neighbours: list[Mapping[str, Any]]) -> Table:
    table = text_table("Similar stored questions, most similar first", ("similarity", "age"), words=0)
    table.add_column("evidence", overflow="fold")
    for neighbour in neighbours:
        question = f'"{neighbour["question"]}"\n' if neighbour["question"] else ""
        if neighbour["guard"] is not None:
            evidence = f"guard {neighbour['guard']}"
        elif neighbour["change"] is None:
            evidence = "the words are the same"
        else:
            evidence = CHANGE_WORDS[Novelty(neighbour["change"])].format(neighbour["verified"])
        similarity, age = f"{neighbour['similarity']:.3f}", long_duration(neighbour["age_s"])
        table.add_row(similarity, age, Text(f"{question}{evidence}"))
    return table

"""The sections of a diagnosis: the verdict and its fixes, the ledgers, the findings, the engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phasewise.core.steps import TimedStep
from phasewise.core.units import NONE, count, counted, duration, number, share
from phasewise.diagnosis.advice.fix import Figure, Fix, PredictedChange
from phasewise.diagnosis.analysis.engine_load import Drafts, EngineLoad, EngineSurroundings, StepShape
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.verdict import Verdict
from phasewise.report.diagnosis import words
from phasewise.report.diagnosis.ledger_rows import UNEXPLAINED_ROW, LedgerRow, share_in_words
from phasewise.report.diagnosis.stall_scene import DrawnStall
from phasewise.report.diagnosis.words import FIGURES, interval_in_words, prediction_in_words
from phasewise.report.layout import request
from phasewise.report.markup import Html, element, table, together

SIDE_BY_SIDE = 4
DUST_SHARE = 1e-4
"""A part with a smaller share than this gets no row on the page."""
NAMED_STREAMS = 4
"""At most this many of the streams that stalled in one step are named; the others are counted."""


def what_to_do(verdict: Verdict) -> Html:
    """The fixes of the top finding with their predictions, and what would not help."""
    next_step, advice = words.what_next(verdict), verdict.advice
    parts = [element("p", f"{next_step[0].upper()}{next_step[1:]}.")] if next_step else []
    if advice is not None:
        parts += [_fix(place, fix) for place, fix in enumerate(advice.fixes, start=1)]
        if advice.do_not_pay:
            parts += [element("h3", "What does not pay here")]
            parts += [_fix(place, fix) for place, fix in enumerate(advice.do_not_pay, start=1)]
        if advice.would_not_help:
            parts += [element("h3", "What would not help"), bulleted(advice.would_not_help)]
    return together(parts)


def _fix(place: int, fix: Fix) -> Html:
    pairs = [("engine flag", _code(fix.engine_flag)), ("fleet file", _code(fix.fleet_line))]
    pairs += [("predicted", _prediction(fix)), ("price", fix.price), ("verify", _code(fix.verify))]
    return element(
        "article",
        element("h3", f"{place}. {fix.what}"),
        _pairs((name, described) for name, described in pairs if described),
        class_="fix first" if place == 1 else "fix",
    )


def _code(text: str | None) -> str:
    return element("code", text) if text else ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> Html:
    return element(
        "dl", *(part for name, described in pairs for part in (element("dt", name), element("dd", described)))
    )


def _prediction(fix: Fix) -> str:
    if fix.effect is None:
        return prediction_in_words(fix) if fix.unpredictable else "nothing"
    ordered = sorted(fix.effect.changes, key=lambda change: change.figure is not fix.aims_at)
    rows = [
        (FIGURES[change.figure], _before(change), interval_in_words(change.interval)) for change in ordered
    ]
    if fix.effect.gain is not None:
        rows.append(("time lost beyond the objective", "", f"{-fix.effect.gain * 100:+.0f}%"))
    replayed = element(
        "small",
        f"{fix.effect.requests:,} requests replayed in {fix.effect.draws} draws; the replay of the window as "
        f"measured is off by {share(fix.effect.replay_off_by)} at worst, which widens the intervals",
    )
    return together((table(("figure", "now", "change, 90%"), rows), replayed))


def _before(change: PredictedChange) -> str:
    if change.figure is Figure.THROUGHPUT:
        return number(change.before)
    return duration(change.before)


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
    pieces = (
        element(
            "span",
            style=f"width:{100 * row.seconds / drawn_s:.3f}%;background:var({row.colour})",
            title=f"{row.name}: {duration(row.seconds)}",
        )
        for row in rows
        if row.seconds > 0
    )
    body = [
        (
            together(
                (
                    element("i", class_="swatch", style=f"background:var({row.colour})"),
                    row.name,
                    element("small", row.source),
                )
            ),
            duration(row.seconds),
            share_in_words(row.seconds, whole_s),
        )
        for row in rows
        if abs(row.seconds) >= DUST_SHARE * whole_s or row.name == UNEXPLAINED_ROW
    ]
    last = (element("strong", total), element("strong", duration(whole_s)), "")
    bar = element("div", *pieces, class_="stack", role="img", aria_label=question)
    return element(
        "figure",
        element("h3", question),
        *([element("p", lead, class_="under")] if lead else []),
        *((bar, table(("part and source", "time", "share"), [*body, last])) if rows else ()),
        element("figcaption", caption),
    )


def findings(verdict: Verdict) -> Html:
    """Every finding with its evidence, what would refute it, and the unexplained share."""
    missing = words.unexplained(verdict)
    rest = [element("p", f"{missing[0].upper()}{missing[1:]}.")] if missing else []
    return together((*(_finding(found, verdict) for found in verdict.findings), *rest))


def _finding(found: Finding, verdict: Verdict) -> Html:
    described = [words.cost(found, verdict), f"confidence {found.confidence}"]
    # The source comes first: it is short, and the fact may be long.
    evidence = [(stated.source.value, stated.words) for stated in found.facts]
    return element(
        "article",
        element("h3", f"{words.CAUSES[found.cause]} ", element("span", ", ".join(described))),
        *([_share_bar(found)] if found.phase in words.WHOLES else []),
        _pairs((*evidence, ("refuted if", found.refuted_by), ("cause id", _code(found.cause.value)))),
        class_="finding",
    )


def _share_bar(found: Finding) -> Html:
    filled = element("i", style=f"width:{100 * min(max(found.share, 0.0), 1.0):.1f}%")
    return element("div", filled, class_="share", role="img", aria_label=words.weight(found))


def engines_table(engines: Sequence[EngineSurroundings]) -> Html:
    """The engines' readings; a reading that no engine has is left out.

    A few engines are shown side by side, many one below the other with common readings shown once.
    """
    described = [_engine(engine) for engine in engines]
    names = [name for name in described[0] if any(each[name] != NONE for each in described)]
    if len(engines) <= SIDE_BY_SIDE:
        head = ("", *(engine.name for engine in engines))
        side_by_side = table(head, [(name, *(each[name] for each in described)) for name in names])
        return element("div", side_by_side, class_="narrow")
    common = [name for name in names if len({each[name] for each in described}) == 1]
    alike = ", ".join(f"{name} {described[0][name]}" for name in common)
    own = [name for name in names if name not in common]
    rows = [
        (engine.name, *(each[name] for name in own)) for engine, each in zip(engines, described, strict=True)
    ]
    return together(
        (*([element("p", f"All alike: {alike}.")] if alike else []), table(("engine", *own), rows))
    )


def _engine(engine: EngineSurroundings) -> dict[str, str]:
    return {
        "requests": count(engine.requests),
        **_engine_load(engine.engine_load),
        "KV tokens": count(engine.kv_tokens),
        "preemptions": count(engine.preemptions),
        "prefix cache": {True: "on", False: "off", None: NONE}[engine.prefix_cache_on],
        **_steps(engine.steps),
        "drafts accepted": _guesses_right(engine.drafts),
        "age": duration(engine.age_s),
        "front end, cores": number(engine.front_end_cores),
        "waited for a CPU": share(engine.cpu_wait_share),
        "host busy": share(engine.host_busy_share),
        "round trip": duration(engine.round_trip_s),
    }


def _engine_load(engine_load: EngineLoad | None) -> dict[str, str]:
    return {
        "running, mean": number(engine_load.running_mean if engine_load else None),
        "running, most": count(engine_load.running_max if engine_load else None),
        "waiting, mean": number(engine_load.waiting_mean if engine_load else None),
        "waiting, most": count(engine_load.waiting_max if engine_load else None),
        "KV used, most": share(engine_load.kv_usage_max if engine_load else None),
    }


def _steps(steps: StepShape | None) -> dict[str, str]:
    return {
        "steps": count(steps.steps if steps else None),
        "busy": share(steps.busy_share if steps else None),
        "chunk, p50": count(steps.chunk_p50_tokens if steps else None),
        "token budget": count(steps.budget_tokens if steps else None),
        "decode step, p50": duration(steps.decode_step_p50_s if steps else None),
    }


def _guesses_right(drafts: Drafts | None) -> str:
    return share(drafts.accepted_tokens / drafts.drafted_tokens if drafts and drafts.drafted_tokens else None)


def stall_list(events: Sequence[DrawnStall], origin_unix_s: float, kept: bool) -> Html:
    """The numbered stalls of a chart in words: when, how long, which step, which requests.

    `kept` says whether a gateway has kept the requests.
    """
    listed = (element("li", *_event(event, origin_unix_s, kept)) for event in events)
    return element("ol", *listed, class_="events")


def _event(event: DrawnStall, origin_unix_s: float, kept: bool) -> Iterator[str]:
    ids = [found.request_id for found in event.stalls]
    longest_s = max(found.stall.duration_s for found in event.stalls)
    yield f"At {event.begin_unix_s - origin_unix_s:.2f} s, {counted(len(ids), 'stream')} stood still for "
    yield f"{duration(longest_s)}. Caused by {words.STALLS[event.cause]}. "
    if event.step is not None:
        yield from _blamed(event, event.step, kept)
    yield from (" Stalled: ", *(request(each, kept=kept) for each in ids[:NAMED_STREAMS]))
    yield f"and {len(ids) - NAMED_STREAMS} more." if len(ids) > NAMED_STREAMS else ""


def _blamed(event: DrawnStall, timed: TimedStep, kept: bool) -> Iterator[str]:
    step = timed.step
    carried = (
        f" with {step.prompt_tokens:,} prompt and {step.decode_tokens or 0:,} decode tokens"
        if step.prompt_tokens is not None
        else ""
    )
    yield f"Step {step.seq} took {duration(timed.duration_s)}{carried}."
    whose = {guilty.request_id: guilty.prompt_tokens for found in event.stalls for guilty in found.guilty}
    if whose:
        yield " The prompts belong to "
    for place, (request_id, tokens) in enumerate(whose.items(), start=1):
        end = "." if place == len(whose) else ", "
        yield from (request(request_id, kept=kept), f"({tokens:,} tokens){end}")


def not_observed(summary: WindowSummary) -> Html:
    """What the evidence does not show."""
    if not summary.not_observed:
        return element("p", "Everything that the rules need was observed.")
    return bulleted(summary.not_observed)


def bulleted(items: Iterable[str]) -> Html:
    """A plain list."""
    return element("ul", *(element("li", item) for item in items), class_="implied")

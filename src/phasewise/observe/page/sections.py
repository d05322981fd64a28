"""The sections of a diagnosis: the verdict and its fixes, the ledgers, the findings, the engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phasewise.bench.page.markup import Html, element, table, together
from phasewise.bench.page.numbers import NONE, count, duration, number, share
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.fix import Figure, Fix, PredictedChange
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.surroundings import Crowd, Drafts, EngineSurroundings, StepShape
from phasewise.diagnosis.verdict import Verdict
from phasewise.observe.page import words
from phasewise.observe.page.fix_words import FIGURES, interval_in_words
from phasewise.observe.page.ledger_rows import RESIDUAL, LedgerRow, share_in_words
from phasewise.observe.page.stall_scene import Scene, StallEvent

SIDE_BY_SIDE = 4
DUST_SHARE = 1e-4
"""A part that is less of the whole than this is not worth a row of the page either."""
NAMED_STREAMS = 4
"""So many of the streams that stalled in one step are named; the others are counted."""


def what_to_do(verdict: Verdict) -> Html:
    """The fixes of the top finding with their predictions, and what would not help."""
    next_step, advice = words.what_next(verdict), verdict.advice
    parts = [element("p", f"{next_step[0].upper()}{next_step[1:]}.")] if next_step else []
    if advice is not None:
        parts += [_fix(place, fix) for place, fix in enumerate(advice.fixes, start=1)]
        if advice.would_not_help:
            parts += [element("h3", "What would not help"), bulleted(advice.would_not_help)]
    return together(parts)


def _fix(place: int, fix: Fix) -> Html:
    pairs = [("engine flag", _code(fix.engine_flag)), ("fleet file", _code(fix.fleet_line))]
    pairs += [("predicted", _prediction(fix)), ("price", fix.price), ("verify", _code(fix.verify))]
    return element(
        "article",
        element("h3", f"{place}. {fix.what}"),
        _pairs((name, told) for name, told in pairs if told),
        class_="fix first" if place == 1 else "fix",
    )


def _code(text: str | None) -> str:
    return element("code", text) if text else ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> Html:
    return element(
        "dl", *(part for name, told in pairs for part in (element("dt", name), element("dd", told)))
    )


def _prediction(fix: Fix) -> str:
    if fix.effect is None:
        return f"not predictable from here: {fix.unpredictable}" if fix.unpredictable else "nothing"
    ordered = sorted(fix.effect.changes, key=lambda change: change.figure is not fix.aims_at)
    rows = [
        (FIGURES[change.figure], _before(change), interval_in_words(change.interval)) for change in ordered
    ]
    replayed = element(
        "small",
        f"{fix.effect.requests:,} requests replayed in {fix.effect.draws} draws; the replay of what was is "
        f"off by {share(fix.effect.replay_off_by)} at worst, which widens the intervals",
    )
    return together((table(("figure", "now", "change, 90%"), rows), replayed))


def _before(change: PredictedChange) -> str:
    if change.figure is Figure.THROUGHPUT:
        return number(change.before)
    return duration(change.before)


def ledger(rows: Sequence[LedgerRow], whole_s: float, question: str, caption: str) -> Html:
    """A mean latency as one bar and the table that it adds up to."""
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
        if abs(row.seconds) >= DUST_SHARE * whole_s or row.name == RESIDUAL
    ]
    total = (element("strong", "mean"), element("strong", duration(whole_s)), "")
    return element(
        "figure",
        element("h3", question),
        element("div", *pieces, class_="stack", role="img", aria_label=question),
        table(("part, and who says so", "time", "share"), [*body, total]),
        element("figcaption", caption),
    )


def findings(verdict: Verdict) -> Html:
    """Every finding with its evidence, what would refute it, and how much none of them explains."""
    missing = words.unexplained(verdict)
    rest = [element("p", f"{missing[0].upper()}{missing[1:]}.")] if missing else []
    return together((*(_finding(found, verdict) for found in verdict.findings), *rest))


def _finding(found: Finding, verdict: Verdict) -> Html:
    told = [words.cost(found, verdict), f"confidence {found.confidence}"]
    # The source stands first: it is short, and what it says may be long.
    evidence = [(stated.source.value, stated.words) for stated in found.facts]
    return element(
        "article",
        element("h3", f"{words.CAUSES[found.cause]} ", element("span", ", ".join(told))),
        *([_share_bar(found)] if found.phase in words.WHOLES else []),
        _pairs((*evidence, ("refuted if", found.refuted_by), ("known as", _code(found.cause.value)))),
        class_="finding",
    )


def _share_bar(found: Finding) -> Html:
    filled = element("i", style=f"width:{100 * min(max(found.share, 0.0), 1.0):.1f}%")
    return element("div", filled, class_="share", role="img", aria_label=words.weight(found))


def engines_table(engines: Sequence[EngineSurroundings]) -> Html:
    """What was around the requests; what nobody could tell of any engine is left out.

    A few engines stand side by side, many below each other with what they have in common said once.
    """
    told = [_engine(engine) for engine in engines]
    names = [name for name in told[0] if any(each[name] != NONE for each in told)]
    if len(engines) <= SIDE_BY_SIDE:
        head = ("", *(engine.name for engine in engines))
        side_by_side = table(head, [(name, *(each[name] for each in told)) for name in names])
        return element("div", side_by_side, class_="narrow")
    common = [name for name in names if len({each[name] for each in told}) == 1]
    alike = ", ".join(f"{name} {told[0][name]}" for name in common)
    own = [name for name in names if name not in common]
    rows = [(engine.name, *(each[name] for name in own)) for engine, each in zip(engines, told, strict=True)]
    return together(
        (*([element("p", f"All alike: {alike}.")] if alike else []), table(("engine", *own), rows))
    )


def _engine(engine: EngineSurroundings) -> dict[str, str]:
    return {
        "requests": count(engine.requests),
        **_crowd(engine.crowd),
        "KV tokens": count(engine.kv_tokens),
        "preemptions": count(engine.preemptions),
        "prefix cache": {True: "on", False: "off", None: NONE}[engine.prefix_cache_on],
        **_steps(engine.steps),
        "guesses right": _guesses_right(engine.drafts),
        "age": duration(engine.age_s),
        "front end, cores": number(engine.front_end_cores),
        "waited for a CPU": share(engine.cpu_wait_share),
        "host busy": share(engine.host_busy_share),
        "round trip": duration(engine.round_trip_s),
    }


def _crowd(crowd: Crowd | None) -> dict[str, str]:
    return {
        "running, mean": number(crowd.running_mean if crowd else None),
        "running, most": count(crowd.running_max if crowd else None),
        "waiting, mean": number(crowd.waiting_mean if crowd else None),
        "waiting, most": count(crowd.waiting_max if crowd else None),
        "KV used, most": share(crowd.kv_usage_max if crowd else None),
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


def stall_list(scene: Scene, origin_unix_s: float) -> Html:
    """The numbered stalls of a drawing in words: when, how long, which step, whose tokens."""
    return element(
        "ol", *(element("li", _event(event, origin_unix_s)) for event in scene.events), class_="events"
    )


def _event(event: StallEvent, origin_unix_s: float) -> str:
    ids = [found.request_id for found in event.stalls]
    named = ", ".join(ids[:NAMED_STREAMS])
    more = f" and {len(ids) - NAMED_STREAMS} more" if len(ids) > NAMED_STREAMS else ""
    longest_s = max(found.stall.duration_s for found in event.stalls)
    when = f"At {event.begin_unix_s - origin_unix_s:.2f} s, for {duration(longest_s)}: {named}{more}."
    return f"{when} {' '.join(_blamed(event))}"


def _blamed(event: StallEvent) -> Iterator[str]:
    yield f"Caused by {words.STALLS[event.cause]}."
    if event.step is None:
        return
    step = event.step.step
    carried = (
        f" with {step.prompt_tokens:,} prompt and {step.decode_tokens or 0:,} decode tokens"
        if step.prompt_tokens is not None
        else ""
    )
    yield f"Step {step.seq} took {duration(event.step.duration_s)}{carried}."
    whose = {guilty.request_id: guilty.prompt_tokens for found in event.stalls for guilty in found.guilty}
    if whose:
        told = ", ".join(f"{request_id} ({tokens:,} tokens)" for request_id, tokens in whose.items())
        yield f"The prompt was that of {told}."


def not_known(picture: Picture) -> Html:
    """What could not be told from where we stood."""
    if not picture.not_known:
        return element("p", "Nothing that the rules look for was out of sight.")
    return bulleted(picture.not_known)


def bulleted(items: Iterable[str]) -> Html:
    """A plain list."""
    return element("ul", *(element("li", item) for item in items), class_="implied")

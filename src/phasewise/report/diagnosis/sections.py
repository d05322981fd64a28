"""The sections of a diagnosis: the fixes, the findings, the stalls, and examples of requests that waited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from phasewise.core.latency import ttft_s
from phasewise.core.steps import TimedStep
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.core.units import counted, duration, number, share
from phasewise.diagnosis.advice.fix import Figure, Fix
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.verdict import Verdict
from phasewise.report.diagnosis import words
from phasewise.report.diagnosis.stall_scene import DrawnStall
from phasewise.report.diagnosis.words import FIGURES, interval_in_words, prediction_in_words
from phasewise.report.markup import Html, element, request, stacked, swatched, table, together
from phasewise.report.time_parts import PHASES, stretches

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
        (
            FIGURES[change.figure],
            (number if change.figure is Figure.THROUGHPUT else duration)(change.before),
            interval_in_words(change.interval),
        )
        for change in ordered
    ]
    if fix.effect.gain is not None:
        rows.append(("time lost beyond the objective", "", f"{-fix.effect.gain * 100:+.0f}%"))
    replayed = element(
        "small",
        f"{fix.effect.requests:,} requests replayed in {fix.effect.draws} draws; the replay of the window as "
        f"measured is off by {share(fix.effect.replay_off_by)} at worst, which widens the intervals",
    )
    return together((table(("figure", "now", "change, 90%"), rows), replayed))


def findings(verdict: Verdict) -> Html:
    """Every finding with its evidence, what would refute it, and the unexplained share."""
    missing = words.unexplained(verdict)
    rest = [element("p", f"{missing[0].upper()}{missing[1:]}.")] if missing else []
    return together((*(_finding(found, verdict) for found in verdict.findings), *rest))


def _finding(found: Finding, verdict: Verdict) -> Html:
    described = f"{words.cost(found, verdict)}, confidence {found.confidence}"
    # The source comes first: it is short, and the fact may be long.
    evidence = [(stated.source.value, stated.words) for stated in found.facts]
    filled = element("i", style=f"width:{100 * min(max(found.share, 0.0), 1.0):.1f}%")
    bar = element("div", filled, class_="share", role="img", aria_label=words.weight(found))
    return element(
        "article",
        element("h3", f"{words.CAUSES[found.cause]} ", element("span", described)),
        *([bar] if found.phase in words.WHOLES else []),
        _pairs((*evidence, ("refuted if", found.refuted_by), ("cause id", _code(found.cause.value)))),
        class_="finding",
    )


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


def bulleted(items: Iterable[str]) -> Html:
    return element("ul", *(element("li", item) for item in items), class_="implied")


# --- Waterfalls of three requests up to their first token: median, 90th percentile and slowest.


@dataclass(frozen=True, slots=True)
class Example:
    """An example request; `waited_s` is its TTFT, or how long it waited without one."""

    which: str
    timeline: Timeline
    waited_s: float

    @property
    def answered(self) -> bool:
        """Whether a first token came."""
        return ttft_s(self.timeline) is not None


def examples(timelines: Sequence[Timeline]) -> tuple[Example, ...]:
    """The median, 90th percentile and slowest requests, each once, without rejected ones."""
    seen = (timeline for timeline in timelines if timeline.outcome is not Outcome.REJECTED)
    firsts = ((ttft_s(timeline), timeline) for timeline in seen)
    waited = sorted(
        ((timeline.ended_s if first_s is None else first_s, timeline) for first_s, timeline in firsts),
        key=lambda waiting: waiting[0],
    )
    last = len(waited) - 1
    places = {last: "slowest", round(0.9 * last): "90th percentile", round(0.5 * last): "median"}
    chosen = ((places[place], *waited[place]) for place in sorted(places) if waited)
    return tuple(Example(which, timeline, waited_s) for which, waited_s, timeline in chosen)


def waterfalls(drawn: Sequence[Example], kept: bool) -> Html:
    """The examples as bars on one scale, with every part named below its bar."""
    longest_s = max(example.waited_s for example in drawn)
    return element(
        "figure",
        element("h3", "What did a request wait for?"),
        *(_waterfall(example, longest_s, kept) for example in drawn),
        element(
            "figcaption",
            "All on one scale. For most parts only the duration is known: they are drawn one after the other "
            "in their usual order. The unexplained part is time that no source reports.",
        ),
    )


def _waterfall(example: Example, longest_s: float, kept: bool) -> Html:
    pieces = [piece for piece in stretches(example.timeline) if piece.phase is not PHASES[Part.DECODE]]
    text = duration(example.waited_s) if example.answered else f"no answer in {duration(example.waited_s)}"
    tokens = example.timeline.prompt_tokens
    prompt = f" {tokens:,} prompt tokens" if tokens is not None else ""
    return element(
        "div",
        element(
            "p",
            element("strong", f"{example.which}: {text}"),
            element("small", request(example.timeline.request_id, kept=kept), prompt),
        ),
        stacked(
            [(piece.phase.name, piece.seconds, piece.phase.colour) for piece in pieces],
            longest_s,
            f"the parts of the {example.which} request's wait in proportion",
        ),
        element(
            "p",
            *(
                element("span", swatched(piece.phase.colour, piece.phase.name), f" {duration(piece.seconds)}")
                for piece in pieces
            ),
            class_="parts",
        ),
        class_="waterfall",
    )

"""Waterfalls of three requests up to their first token: the median, the 90th percentile and the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phasewise.core.latency import ttft_s
from phasewise.core.timeline import Outcome, Part, Timeline
from phasewise.core.units import duration
from phasewise.report.bench.phases import PHASES, UNEXPLAINED, PhaseStyle, Stretch, stretches
from phasewise.report.diagnosis.ledger_rows import PARTS, UNEXPLAINED_ROW
from phasewise.report.layout import request
from phasewise.report.markup import Html, element, together

NAMES = {PHASES[part]: name for part, name in PARTS.items()} | {UNEXPLAINED: UNEXPLAINED_ROW}


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
    waited = sorted(
        ((_waited_s(it), it) for it in timelines if it.outcome is not Outcome.REJECTED),
        key=lambda item: item[0],
    )
    if not waited:
        return ()
    last = len(waited) - 1
    places = {last: "slowest", round(0.9 * last): "90th percentile", round(0.5 * last): "median"}
    return tuple(Example(places[place], waited[place][1], waited[place][0]) for place in sorted(places))


def _waited_s(timeline: Timeline) -> float:
    first_s = ttft_s(timeline)
    return timeline.ended_s if first_s is None else first_s


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
    pieces = [item for item in stretches(example.timeline) if item.phase is not PHASES[Part.DECODE]]
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
        element(
            "div",
            *(_piece(item, longest_s) for item in pieces),
            class_="stack",
            role="img",
            aria_label=f"the parts of the {example.which} request's wait in proportion",
        ),
        element("p", *_named(pieces), class_="parts"),
        class_="waterfall",
    )


def _piece(item: Stretch, longest_s: float) -> Html:
    part = item.seconds / longest_s if longest_s > 0 else 0.0
    return element(
        "span",
        style=f"width:{100 * part:.3f}%;background:var({item.phase.colour})",
        title=f"{NAMES[item.phase]}: {duration(item.seconds)}",
    )


def _named(pieces: Sequence[Stretch]) -> Iterator[Html]:
    for item in pieces:
        yield element("span", swatched(item.phase, NAMES[item.phase]), f" {duration(item.seconds)}")


def swatched(phase: PhaseStyle, name: str) -> Html:
    """A name with its colour in the charts."""
    return together((element("i", class_="swatch", style=f"background:var({phase.colour})"), name))

"""The tour as one HTML file that opens offline: every request as its prefill and its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.timeline import Timeline
from phasewise.experiments.tour.stops import Outcome, Played
from phasewise.report.charts import Chart, Panel, Series, Shape, axis, rows_axis
from phasewise.report.drawn_charts import drawn
from phasewise.report.layout import defined, repeat_section, section, strip, whole_page
from phasewise.report.markup import Html, element, table, together
from phasewise.report.tour.text import held_in_words, in_words, range_in_words

TITLE = "See the two phases"
LEAD = (
    "Every row is a request: a blue block until its first token (queue and prefill), then a mark for each "
    "piece of its answer (decode)."
)
CARDS = (
    (
        "RAG: long prompts, short answers",
        "prefill: slow to start",
        ("prefix caching, with documents in one order", "fewer or shorter passages", "W8A8 or more devices"),
        "speculative decoding: there is little to stream",
    ),
    (
        "Code: long shared context, answers that repeat it",
        "both; after a cache hit decode",
        ("prefix caching", "speculative decoding by n-gram", "prefix-aware routing"),
        "sending each request of a conversation to another engine",
    ),
    (
        "Chat: short turns, many at once",
        "decode: slow to stream",
        ("a batch as large as TPOT allows", "smaller prefill chunks, or disaggregation", "quantized weights"),
        "larger chunks: every stream waits for them",
    ),
    (
        "Batch jobs: nobody waits",
        "neither: tokens per second count",
        (
            "the largest batch that the KV cache holds",
            "KV cache in 8 bits",
            "prompts that share a prefix one after another",
        ),
        "anything that buys TTFT with throughput",
    ),
)


def render_tour(
    first: Played, found: Sequence[tuple[Played, Sequence[Outcome]]], target: str, command: str
) -> str:
    """The whole page."""
    headline = held_in_words(it for _, every in found for it in every)
    parts = (
        strip("measured", ("Synthetic load", target), headline, LEAD),
        section(f"To compare with: {first.stop.title}", _requests(first.timelines)),
        *(
            section(f"{number}. {played.stop.title}", _predictions(every), _requests(played.timelines))
            for number, (played, every) in enumerate(found, start=1)
        ),
        section("Your workload: which phase, which levers first", _cards()),
        defined(),
        repeat_section(command),
    )
    return whole_page(TITLE, together(parts))


def _predictions(found: Sequence[Outcome]) -> Html:
    rows = [
        (it.prediction.figure, range_in_words(it.prediction), it.prediction.why, in_words(it)) for it in found
    ]
    return table(("figure", "predicted", "because", "measured"), rows, words=4)


def _requests(timelines: Sequence[Timeline]) -> Html:
    """When each request was sent, had its first token, and got the others."""
    rows = sorted(timelines, key=lambda it: it.started_unix_s)
    if not rows:
        return element("p", "No request was answered.")
    origin_s = rows[0].started_unix_s
    waits, marks, ends = [], [], [0.0]
    for place, it in enumerate(rows, start=1):
        sent_s = it.started_unix_s - origin_s
        times = [sent_s + at_s for at_s in it.content_times_s] or [sent_s + it.ended_s]
        waits.append((sent_s, place - 0.3, times[0], place + 0.3))
        marks += [(at_s, place - 0.3, at_s, place + 0.3) for at_s in times[1:]]
        ends.append(times[-1])
    names = [(float(place), f"{it.prompt_tokens or '?'} tokens") for place, it in enumerate(rows, start=1)]
    panel = Panel(
        rows_axis("prompt", names, len(rows)),
        (
            Series("until the first token", "--prefill", Shape.BOXES, tuple(waits), "{width} s"),
            Series("a piece of the answer", "--decode", Shape.SEGMENTS, tuple(marks), "at {x} s", size=1.5),
        ),
        height=60 + 22 * len(rows),
    )
    return drawn(Chart("When did each request get its tokens?", "", axis("seconds", ends), (panel,)))


def _cards() -> Html:
    rows = [(name, phase, together(_listed(levers)), never) for name, phase, levers, never in CARDS]
    return table(("workload", "likely phase", "first levers", "what not to do"), rows, words=4)


def _listed(levers: Sequence[str]) -> list[Html]:
    return [element("ol", *(element("li", lever) for lever in levers))]

"""One request's life as one HTML file that opens anywhere, offline.

It shows ids, counts and times, never a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phasewise import __version__
from phasewise.core.latency import e2e_s, tpot_s, ttft_s
from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.units import counted, duration
from phasewise.costs.roofline.architecture import Architecture
from phasewise.diagnosis.analysis.request_life import RequestLife
from phasewise.report.drawn_charts import drawn
from phasewise.report.markup import (
    Html,
    element,
    facts,
    moment,
    request,
    section,
    strip,
    table,
    together,
    whole_page,
)
from phasewise.report.request.drawing import (
    bytes_read,
    drawn_steps,
    kv_cache,
    own_steps,
    whole_life,
)
from phasewise.report.request.words import ledger_of, short_id, where_the_time_went
from phasewise.report.time_parts import ledger

MOST_FELLOWS = 12


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The model's shape, or why it is unknown."""

    architecture: Architecture | None
    why_not: str = ""


def request_page(life: RequestLife, model: ModelShape, missing: Sequence[str] = ()) -> str:
    """The whole page. `missing` says why there is no step record."""
    steps = drawn_steps(life)
    recorded = bool(life.steps)
    timeline = life.timeline
    parts = [
        _strip(life),
        *_notes(timeline, missing),
        section("Where the time went", _ledgers(life)),
        section("E2E = TTFT + (n - 1) x TPOT", _equation(timeline)),
    ]
    drawings = [whole_life(life, steps)]
    if steps:
        drawings.append(own_steps(steps, recorded=recorded))
    parts.append(section("Prefill and decode", *map(drawn, drawings)))
    if steps and timeline.prompt_tokens:
        parts.append(
            section(
                "The KV cache", drawn(kv_cache(steps, timeline.prompt_tokens, timeline.cached_tokens or 0))
            )
        )
        left_out = f"Left out: {model.why_not}. `--config` names a model's config.json."
        known = model.architecture
        read = element("p", left_out) if known is None else bytes_read(steps, known)
        parts.append(section("Bytes read per step", read))
    if timeline.attempts:
        parts.append(section("Who shared its steps", _fellows(life)))
    parts.append(section("This request", _circumstances(timeline)))
    return whole_page(f"Request {timeline.request_id}", together(parts))


def _strip(life: RequestLife) -> Html:
    timeline = life.timeline
    tone = "measured" if timeline.outcome is Outcome.SUCCEEDED else "failing"
    about = (
        "Live traffic",
        "one request",
        timeline.outcome.replace("_", " "),
        moment(timeline.started_unix_s),
    )
    first, stop, rest = where_the_time_went(life).partition(". ")
    return strip(tone, about, first + stop.strip(), rest, request(timeline.request_id))


def _notes(timeline: Timeline, missing: Sequence[str]) -> Iterator[Html]:
    if missing:
        yield element("p", f"No step record: {'; '.join(missing)}.", class_="where")
    if timeline.choices != 1:
        yield element("p", f"Its {timeline.choices} choices were generated side by side: not drawn.")


def _circumstances(timeline: Timeline) -> Html:
    serving = timeline.serving_attempt
    return facts(
        {
            "Arrived": moment(timeline.started_unix_s),
            "Model": timeline.model,
            "Worker": "none" if serving is None else serving.worker.name,
            "Prompt tokens": _tokens(timeline.prompt_tokens, timeline.cached_tokens),
            "Output tokens": _tokens(timeline.output_tokens),
            "The client's id": timeline.client_request_id or "none",
            "phasewise": __version__,
        }
    )


def _tokens(count: int | None, cached: int | None = None) -> str:
    if count is None:
        return "not reported"
    return f"{count:,}, {cached:,} of them from the prefix cache" if cached else f"{count:,}"


def _equation(timeline: Timeline) -> Html:
    first_s, whole_s, per_token_s = ttft_s(timeline), e2e_s(timeline), tpot_s(timeline)
    if first_s is None or whole_s is None or per_token_s is None:
        why = "TPOT needs a stream of one choice with two or more tokens"
        if not timeline.streamed:
            why = "the reply was not streamed, so nobody saw its first token"
        elif whole_s is None:
            why = "the request did not end well"
        return element("p", f"It does not apply here: {why}.")
    n = timeline.output_tokens or 0
    return element(
        "p",
        element("strong", duration(whole_s)),
        " = ",
        element("strong", duration(first_s)),
        f" + ({n:,} - 1) x ",
        element("strong", duration(per_token_s)),
        element(
            "small", f"end to end = time to first token + {n - 1:,} further tokens x time per output token"
        ),
        class_="equation",
    )


def _fellows(life: RequestLife) -> Html:
    if not life.steps:
        return element("p", "Not observed: there is no step record of this request.")
    if not life.fellows:
        return element("p", "No other request that has ended since was in the steps of its own tokens.")
    shown = life.fellows[:MOST_FELLOWS]
    rows = []
    for fellow in shown:
        counts = (fellow.prompt_tokens, fellow.output_tokens, fellow.prefill_steps, fellow.decode_steps)
        rows.append((request(short_id(fellow.request_id)), *(f"{count:,}" for count in counts)))
    more = len(life.fellows) - len(shown)
    left = [element("p", f"{counted(more, 'request')} with fewer common steps left out.")] if more else []
    head = (
        "other request",
        "prompt tokens",
        "output tokens",
        "common steps: other in prefill",
        "other in decode",
    )
    own = "A common step computed tokens of both requests: of this one, its prompt or an output token."
    return together((element("p", own), table(head, rows), *left))


def _ledgers(life: RequestLife) -> Html:
    found, caption = ledger_of(life), "The parts add up."
    title, total = ("Until the first token", "TTFT") if found.stream else ("Until its end", "in all")
    figures = [ledger(found.start, found.start_s, title, caption, total=total)]
    if found.stream:
        title = "From the first token to the last"
        figures.append(ledger(found.stream, found.stream_s, title, caption, total="in all"))
    return element("div", *figures, class_=f"grid of-{len(figures)}")

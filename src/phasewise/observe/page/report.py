"""A verdict as one HTML file that opens anywhere, offline: what is slow, why, what to do, and the evidence.

Frame, colours and script are the bench report's. It shows request ids and counts, never a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.resources import files

from phasewise import __version__
from phasewise.bench.page.markup import Html, element, together
from phasewise.bench.page.numbers import bound
from phasewise.bench.page.sections import chart, section
from phasewise.bench.report_page import whole_page
from phasewise.diagnosis.picture import explained
from phasewise.diagnosis.verdict import Verdict
from phasewise.observe.evidence import Evidence
from phasewise.observe.page import sections, words
from phasewise.observe.page.definitions import MEANINGS
from phasewise.observe.page.engine_lines import engines_in_words
from phasewise.observe.page.ledger_rows import start_rows, stream_rows
from phasewise.observe.page.phase_words import tpot_in_words, ttft_in_words
from phasewise.observe.page.stall_scene import SPAN_S, Scene, worst_scenes
from phasewise.observe.page.step_charts import step_chart
from phasewise.observe.page.waterfalls import examples, waterfalls
from phasewise.observe.page.workload_section import workload_section

_STYLE = files("phasewise.observe.page") / "style.css"


def report_page(verdict: Verdict, evidence: Evidence, subject: str) -> str:
    """The whole page. `subject` is what was diagnosed, such as a gateway's address and its engines.

    Steps are drawn by plotly, which a page without a step record does without.
    """
    scenes = worst_scenes(verdict, evidence)
    parts = (
        _header(verdict, evidence, subject),
        section("What to do", sections.what_to_do(verdict)),
        section("What the traffic looked like", workload_section(verdict.picture)),
        *_start(verdict, evidence),
        *_stream(verdict),
        *_steps(scenes, verdict, evidence),
        *_findings(verdict),
        *_engines(verdict),
        section("What is not known from here", sections.not_known(verdict.picture)),
        section("What the words mean", _definitions()),
    )
    style = _STYLE.read_text(encoding="utf-8")
    return whole_page(_title(verdict, subject), together(parts), style=style, charts=bool(scenes))


def _title(verdict: Verdict, subject: str) -> str:
    return f"{words.headline(verdict)} - {subject}"


def _header(verdict: Verdict, evidence: Evidence, subject: str) -> Html:
    picture, top = verdict.picture, verdict.top
    button = element("button", "light / dark", id="scheme", type="button", hidden=True)
    besides = [] if top is None else [words.cost(top, verdict), f"confidence {top.confidence}"]
    besides += [words.also_slow(verdict)] if verdict.also_slow is not None else []
    title = element(
        "h1",
        words.headline(verdict),
        element("small", ", ".join(besides)) if besides else "",
        class_="headline",
    )
    facts = {
        "Requests": ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in picture.outcomes)
        or "none",
        "Window": f"{picture.window_s:.0f} s from {_moment(evidence.began_unix_s)}",
        "Seen by": picture.seen_by,
        "Objective": f"TTFT {bound(verdict.slo.ttft_s)}, TPOT {bound(verdict.slo.tpot_s)}",
        "phasewise": __version__,
    }
    pairs = (element("div", element("dt", name), element("dd", told)) for name, told in facts.items())
    return element(
        "header",
        element("div", title, button, class_="top"),
        element("p", subject, class_="where"),
        *_caveats(verdict),
        element("noscript", element("p", "The drawings of steps need JavaScript; nothing else does.")),
        element("dl", *pairs, class_="facts"),
    )


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _caveats(verdict: Verdict) -> Iterator[Html]:
    told = words.caveats(verdict)
    if told:
        listed = element("ul", *(element("li", caveat) for caveat in told))
        yield element("div", element("strong", "Before you act"), listed, class_="banner cut", role="alert")


def _start(verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    start = verdict.picture.start
    if start is None:
        return
    drawn = examples(explained(evidence.timelines, evidence.logs, verdict.picture.fit))
    summary = f"TTFT {ttft_in_words(start)}."
    mean = sections.ledger(
        start_rows(start),
        start.parts_mean_s,
        "Where does the mean TTFT go?",
        f"The mean of {start.timed} requests whose engine told its phases; the parts add up. "
        f"{start.step_timed} of them were matched to the engine's steps.",
    )
    shown = (waterfalls(drawn), mean) if drawn else (mean,)
    body = element("div", *shown, class_=f"grid of-{len(shown)}")
    yield section("Until the first token", element("p", summary), body)


def _stream(verdict: Verdict) -> Iterator[Html]:
    stream = verdict.picture.stream
    if stream is None:
        return
    summary = f"TPOT {tpot_in_words(stream)}."
    rows = stream_rows(stream)
    mean = sections.ledger(
        rows,
        stream.tpot_mean_s,
        "Where does the mean token's time go?",
        f"The mean time of a token after the first, of {stream.step_timed or stream.streams} streams; the "
        "parts add up.",
    )
    yield section("From token to token", element("p", summary), *([mean] if rows else []))


def _steps(scenes: tuple[Scene, ...], verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    if not scenes:
        return
    whole, origin_s = scenes[0], evidence.began_unix_s
    span_s, window_s = whole.end_unix_s - whole.begin_unix_s, verdict.picture.window_s
    which = "with the worst stalls" if whole.events else "at its end"
    cut = f"Drawn are the {span_s:.0f} s {which}, of {window_s:.0f} s." if span_s >= SPAN_S else ""
    question = "Which steps made streams stand still?" if whole.events else "What did the engine do?"
    drawn = [step_chart(near, "The worst stall from near", origin_s) for near in scenes[1:]]
    drawn.append(step_chart(whole, question, origin_s))
    yield section(
        "The engine's steps",
        *([element("p", cut)] if cut else []),
        element("div", *map(chart, drawn), class_="grid"),
        sections.stall_list(whole, origin_s)
        if whole.events
        else element("p", "No gap was many times its stream's usual one."),
    )


def _findings(verdict: Verdict) -> Iterator[Html]:
    if verdict.findings:
        yield section("Why: every cause that was found", sections.findings(verdict))


def _engines(verdict: Verdict) -> Iterator[Html]:
    engines = verdict.picture.engines
    if engines:
        told = (element("p", line) for line in engines_in_words(engines))
        yield section("The engines", *told, sections.engines_table(engines))


def _definitions() -> Html:
    pairs = (
        part for name, meaning in MEANINGS.items() for part in (element("dt", name), element("dd", meaning))
    )
    return element("dl", *pairs, class_="definitions")

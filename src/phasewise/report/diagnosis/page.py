"""A verdict as one HTML file that opens anywhere, offline: what is slow, why, what to do, and the evidence.

It shows request ids and counts, never a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.resources import files

from phasewise import __version__
from phasewise.core.units import bound, elapsed
from phasewise.diagnosis.analysis.attribution import explained, readings_of
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Verdict
from phasewise.loadgen.results import DEFINITIONS
from phasewise.report.bench.page import whole_page
from phasewise.report.bench.sections import chart, section
from phasewise.report.diagnosis import sections, words
from phasewise.report.diagnosis.engine_lines import engines_in_words
from phasewise.report.diagnosis.ledger_rows import start_rows, stream_rows
from phasewise.report.diagnosis.stall_scene import SPAN_S, StallScene, worst_scenes
from phasewise.report.diagnosis.step_charts import step_chart
from phasewise.report.diagnosis.waterfalls import examples, waterfalls
from phasewise.report.diagnosis.words import tpot_in_words, ttft_in_words
from phasewise.report.diagnosis.workload import workload_section
from phasewise.report.markup import Html, element, together

# --- The definitions that the page prints.

_COMMON = ("TTFT", "TPOT", "ITL", "stall", "generator lag")

MEANINGS = {name: DEFINITIONS[name] for name in _COMMON} | {
    "engine queue": "from the engine's receipt of a request to the first step with its tokens",
    "waiting for running step": "requests that arrive during a step wait for its end",
    "prefill, own tokens": "the share of the prompt's steps that its own tokens took",
    "unexplained": "time that no source reports: network, tokenization, hops between processes",
    "decode step at batch 1": "what a decode step takes with a single stream, by the fitted costs",
    "added by batching": "what the other streams of the batch add to a step, by the fitted costs",
    "reading the KV cache": "what reading the contexts of the streams adds to a step, by the fitted costs",
    "other requests' prefill": "what other requests' tokens in the same steps add to a prefill; "
    "for a token, what prompts in the same steps add to it",
    "share": "a cause's part of the phase's mean latency; causes do not overlap, so shares never exceed 100%",
    "lost": "seconds beyond the objective, over all requests of the window; causes are ranked by it",
    "confidence": "high needs enough requests matched to engine steps; indirect evidence lowers it",
    "predicted": "a 90% interval from replaying this window's traffic through a model of the engine whose "
    "costs were fitted to its steps, with the one change; effects of two fixes are never multiplied",
}


_STYLE = files("phasewise.report.diagnosis") / "style.css"


def report_page(verdict: Verdict, evidence: Evidence, subject: str) -> str:
    """The whole page. `subject` is the target, such as a gateway's address and its engines.

    Plotly draws the steps; a page without a step record does not include it.
    """
    scenes = worst_scenes(verdict, evidence)
    parts = (
        _header(verdict, evidence, subject),
        section("What to do", sections.what_to_do(verdict)),
        *_probe(verdict),
        section("Traffic", workload_section(verdict.summary)),
        *_start(verdict, evidence),
        *_stream(verdict),
        *_steps(scenes, verdict, evidence),
        *_findings(verdict),
        *_engines(verdict),
        section("Not observed", sections.not_observed(verdict.summary)),
        section("Definitions", _definitions()),
    )
    style = _STYLE.read_text(encoding="utf-8")
    return whole_page(_title(verdict, subject), together(parts), style=style, charts=bool(scenes))


def _title(verdict: Verdict, subject: str) -> str:
    return f"{words.headline(verdict)} - {subject}"


def _header(verdict: Verdict, evidence: Evidence, subject: str) -> Html:
    summary, top = verdict.summary, verdict.top
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
        "Requests": ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary.outcomes)
        or "none",
        "Window": f"{elapsed(summary.window_s)} from {_moment(evidence.began_unix_s)}",
        "Observed by": summary.seen_by,
        "Objective": f"TTFT {bound(verdict.slo.ttft_s)}, TPOT {bound(verdict.slo.tpot_s)}",
        "phasewise": __version__,
    }
    pairs = (element("div", element("dt", name), element("dd", text)) for name, text in facts.items())
    return element(
        "header",
        element("div", title, button, class_="top"),
        element("p", subject, class_="where"),
        *_caveats(verdict),
        element("noscript", element("p", "The charts of steps need JavaScript; the rest does not.")),
        element("dl", *pairs, class_="facts"),
    )


def _probe(verdict: Verdict) -> Iterator[Html]:
    probe = verdict.summary.probe
    if probe is not None and (lines := tuple(words.probe_in_words(probe))):
        yield section("What the probe measured", sections.bulleted(lines))


def _moment(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _caveats(verdict: Verdict) -> Iterator[Html]:
    text = words.caveats(verdict)
    if text:
        listed = element("ul", *(element("li", caveat) for caveat in text))
        yield element("div", element("strong", "Before you act"), listed, class_="banner cut", role="alert")


def _start(verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    start = verdict.summary.start
    if start is None:
        return
    drawn = examples(explained(evidence.timelines, readings_of(evidence.logs, verdict.summary.fit)))
    summary = f"TTFT {ttft_in_words(start)}."
    mean = sections.ledger(
        start_rows(start),
        start.parts_mean_s,
        "Where does the mean TTFT go?",
        f"The mean of {start.timed} requests whose engine reported its phases; the parts add up. "
        f"{start.step_timed} of them were matched to the engine's steps.",
    )
    shown = (waterfalls(drawn), mean) if drawn else (mean,)
    body = element("div", *shown, class_=f"grid of-{len(shown)}")
    yield section("Until the first token", element("p", summary), body)


def _stream(verdict: Verdict) -> Iterator[Html]:
    stream = verdict.summary.stream
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


def _steps(scenes: tuple[StallScene, ...], verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    if not scenes:
        return
    whole, origin_s = scenes[0], evidence.began_unix_s
    span_s, window_s = whole.end_unix_s - whole.begin_unix_s, verdict.summary.window_s
    which = "with the worst stalls" if whole.events else "at its end"
    cut = f"Shown: the {elapsed(span_s)} {which}, of {elapsed(window_s)}." if span_s >= SPAN_S else ""
    question = "Which steps stalled streams?" if whole.events else "What did the engine do?"
    drawn = [step_chart(near, "The worst stall in detail", origin_s) for near in scenes[1:]]
    drawn.append(step_chart(whole, question, origin_s))
    yield section(
        "The engine's steps",
        *([element("p", cut)] if cut else []),
        element("div", *map(chart, drawn), class_="grid"),
        sections.stall_list(whole, origin_s)
        if whole.events
        else element("p", "No gap was many times its stream's median."),
    )


def _findings(verdict: Verdict) -> Iterator[Html]:
    if verdict.findings:
        yield section("Why: all causes found", sections.findings(verdict))


def _engines(verdict: Verdict) -> Iterator[Html]:
    engines = verdict.summary.engines
    if engines:
        text = (element("p", line) for line in engines_in_words(engines))
        yield section("The engines", *text, sections.engines_table(engines))


def _definitions() -> Html:
    pairs = (
        part for name, meaning in MEANINGS.items() for part in (element("dt", name), element("dd", meaning))
    )
    return element("dl", *pairs, class_="definitions")

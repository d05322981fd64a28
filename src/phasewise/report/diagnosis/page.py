"""A verdict as one HTML file that opens anywhere, offline: what is slow, why, what to do, and the evidence.

It shows request ids and counts, never a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

from phasewise import __version__
from phasewise.benchmark.results import DEFINITIONS
from phasewise.core.units import bound, counted, duration, elapsed
from phasewise.diagnosis.analysis.attribution import explained, readings_of
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.report.diagnosis import sections, words
from phasewise.report.diagnosis.sections import examples, waterfalls
from phasewise.report.diagnosis.stall_scene import SPAN_S, StallScene, worst_scenes
from phasewise.report.diagnosis.step_charts import step_chart
from phasewise.report.diagnosis.surroundings import engines_in_words, engines_table, workload_section
from phasewise.report.diagnosis.words import tpot_in_words, ttft_in_words
from phasewise.report.drawn_charts import drawn
from phasewise.report.markup import (
    Html,
    defined,
    element,
    facts,
    moment,
    section,
    strip,
    together,
    whole_page,
)
from phasewise.report.time_parts import ledger, start_rows, stream_rows

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


TONES = {
    Ruling.SLOW_TO_START: "start",
    Ruling.SLOW_TO_STREAM: "stream",
    Ruling.FAILING: "failing",
    Ruling.HEALTHY: "healthy",
}
"""The colour of the strip; a ruling without one is unknown."""


def report_page(verdict: Verdict, evidence: Evidence, subject: str) -> str:
    """The whole page. `subject` is the target, such as a gateway's address and its engines."""
    summary, slo = verdict.summary, verdict.slo
    traffic = "Synthetic probe" if summary.synthetic else "Live traffic"
    probed = () if summary.probe is None else tuple(words.probe_in_words(summary.probe))
    circumstances = {
        "Window": f"{elapsed(summary.window_s)} from {moment(evidence.began_unix_s)}",
        "Objective": f"TTFT {bound(slo.ttft_s)}, TPOT {bound(slo.tpot_s)}",
        "phasewise": __version__,
    }
    parts = (
        verdict_strip(verdict, subject, traffic),
        verdict_sections(verdict, evidence),
        *([section("What the probe measured", sections.bulleted(probed))] if probed else []),
        section("Traffic", workload_section(summary)),
        *_examples(verdict, evidence),
        *_engines(verdict),
        section("This window", facts(circumstances)),
        defined(MEANINGS),
    )
    return whole_page(f"{words.headline(verdict)} - {subject}", together(parts))


def verdict_strip(verdict: Verdict, subject: str, traffic: str) -> Html:
    """The verdict in short, the first thing on its page. `traffic` says whether it was live or synthetic."""
    summary, top = verdict.summary, verdict.top
    late_sender = top is not None and top.cause in words.NOT_THE_SERVER
    requests = counted(sum(count for _, count in summary.outcomes), "request")
    about = (
        traffic,
        f"{requests}: {words.outcomes(summary)}" if summary.outcomes else words.outcomes(summary),
        f"in {elapsed(summary.window_s)}",
        f"observed by {summary.seen_by}",
        subject,
    )
    besides = [] if top is None else [words.cost(top, verdict)]
    besides += words.besides(verdict)
    sure = "" if top is None else words.CONFIDENCES[top.confidence]
    if verdict.ruling is Ruling.HEALTHY and summary.start is not None and summary.stream is not None:
        besides.append(
            f"TTFT p90 {duration(summary.start.ttft_p90_s)} of {bound(verdict.slo.ttft_s)}, "
            f"TPOT p90 {duration(summary.stream.tpot_p90_s)} of {bound(verdict.slo.tpot_s)}"
        )
    tone = "unknown" if late_sender else TONES.get(verdict.ruling, "unknown")
    return strip(tone, about, words.headline(verdict), ", ".join(besides), sure)


def verdict_sections(verdict: Verdict, evidence: Evidence) -> Html:
    """The verdict in full: where the time went, the worst stall, what to do, and why."""
    scenes = worst_scenes(verdict, evidence)
    not_observed = verdict.summary.not_observed
    unseen = (
        sections.bulleted(not_observed) if not_observed else "Everything that the rules need was observed."
    )
    parts = (
        *_caveats(verdict),
        *_where(verdict),
        *_worst_stall(scenes, evidence),
        section("What to do", sections.what_to_do(verdict)),
        *([section("Why: all causes found", sections.findings(verdict))] if verdict.findings else []),
        *_steps(scenes, verdict, evidence),
        section("Not observed", unseen),
    )
    return together(parts)


def _caveats(verdict: Verdict) -> Iterator[Html]:
    if listed := words.caveats(verdict):
        items = element("ul", *(element("li", caveat) for caveat in listed))
        yield element("div", element("strong", "Before you act"), items, class_="banner cut", role="alert")


def _where(verdict: Verdict) -> Iterator[Html]:
    """The two bars: where the time to the first token and the time per token went."""
    start, stream, slo, bars = verdict.summary.start, verdict.summary.stream, verdict.slo, []
    if start is not None:
        described = (
            f"The mean TTFT of {start.timed} requests whose engine reported its phases; the parts add up. "
            f"{start.step_timed} of them were matched to the engine's steps."
        )
        lead = f"TTFT {ttft_in_words(start)}; objective {bound(slo.ttft_s)}"
        title = "Until the first token"
        bars.append(ledger(start_rows(start), start.parts_mean_s, title, described, lead=lead))
    if stream is not None:
        described = (
            f"The mean time of a token after the first, of {stream.step_timed or stream.streams} streams; "
            "the parts add up."
        )
        lead = f"TPOT {tpot_in_words(stream)}; objective {bound(slo.tpot_s)}"
        bars.append(
            ledger(stream_rows(stream), stream.tpot_mean_s, "From token to token", described, lead=lead)
        )
    if bars:
        yield section("Where the time went", element("div", *bars, class_=f"grid of-{len(bars)}"))


def _worst_stall(scenes: tuple[StallScene, ...], evidence: Evidence) -> Iterator[Html]:
    if scenes and scenes[0].events:
        origin_s = evidence.began_unix_s
        near = drawn(step_chart(scenes[-1], "What stalled the streams?", origin_s))
        first = sections.stall_list(scenes[0].events[:1], origin_s, evidence.explainable)
        yield section("The worst stall", first, near)


def _examples(verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    found = examples(explained(evidence.timelines, readings_of(evidence.logs, verdict.summary.fit)))
    if found:
        yield section("Three requests", waterfalls(found, evidence.explainable))


def _steps(scenes: tuple[StallScene, ...], verdict: Verdict, evidence: Evidence) -> Iterator[Html]:
    # A scene without a close-up is drawn as the worst stall.
    if not scenes or (len(scenes) == 1 and len(scenes[0].events) == 1):
        return
    whole, origin_s = scenes[0], evidence.began_unix_s
    span_s, window_s = whole.end_unix_s - whole.begin_unix_s, verdict.summary.window_s
    which = "with the worst stalls" if whole.events else "at its end"
    cut = f"Shown: the {elapsed(span_s)} {which}, of {elapsed(window_s)}." if span_s >= SPAN_S else ""
    question = "Which steps stalled streams?" if whole.events else "What did the engine do?"
    said = [] if whole.events else [element("p", "No gap was many times its stream's median.")]
    if len(whole.events) > 1:
        said = [sections.stall_list(whole.events, origin_s, evidence.explainable)]
    yield section(
        "The engine's steps",
        *([element("p", cut)] if cut else []),
        drawn(step_chart(whole, question, origin_s)),
        *said,
    )


def _engines(verdict: Verdict) -> Iterator[Html]:
    engines = verdict.summary.engines
    if engines:
        text = (element("p", line) for line in engines_in_words(engines))
        yield section("The engines", *text, engines_table(engines))

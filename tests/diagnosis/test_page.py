"""The page of a verdict: whole, offline, bounded, and true to the record that it draws."""

import re
from dataclasses import replace
from html import escape
from shlex import quote

import pytest

from phasewise.core.slo import Slo
from phasewise.core.steps import StepLog
from phasewise.core.timeline import Outcome, Part
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.stall_causes import StallCause
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Ruling
from phasewise.report.diagnosis import stall_scene, words
from phasewise.report.diagnosis.page import MEANINGS, report_page, verdict_strip
from phasewise.report.diagnosis.sections import examples
from phasewise.report.diagnosis.stall_scene import SPAN_S, STREAM_LIMIT, worst_scenes
from phasewise.report.diagnosis.step_charts import step_chart
from phasewise.report.diagnosis.surroundings import engines_table
from phasewise.report.markup import request
from phasewise.report.time_parts import OWN_PREFILL, PHASES
from tests.builders import EPOCH_S, make_finished, make_span, make_step, make_timeline

SLO = Slo(ttft_s=5.0, tpot_s=0.1)
HOSTILE = "</script><img src=x onerror=alert(1)>"
SECTIONS = (
    "Where the time went",
    "The worst stall",
    "What to do",
    "Why: all causes found",
    "The engine's steps",
    "Not observed",
    "Traffic",
    "Three requests",
    "This window",
    "Definitions",
)
STALL_AT_S = 1.0
STALL_S = 2.5


def make_stalled(index, *, at_s=STALL_AT_S, **fields):
    """A stream of a token every 50 ms that stands still from `at_s` on, until the long step ends."""
    before = [at_s - 0.05 * (10 - token) for token in range(11)]
    after = [at_s + STALL_S + 0.05 * token for token in range(20)]
    defaults = {"request_id": f"victim-{index}", "started_unix_s": EPOCH_S}
    return make_timeline((*before, *after), **{**defaults, **fields})


def make_steps(stall_at_s=STALL_AT_S, *, until_s=20.0):
    """Steps of 50 ms, but for one that carries a long prompt beside the streams."""
    guilty = make_finished("chatcmpl-guilty", prompt_tokens=2000, prefill_s=STALL_S, decode_s=0.1, e2e_s=2.7)
    steps, at_s, seq = [], 0.0, 0
    while at_s < until_s:
        long = abs(at_s - stall_at_s) < 0.02
        at_s += STALL_S if long else 0.05
        done = abs(at_s - (stall_at_s + STALL_S + 0.1)) < 0.02
        steps.append(
            make_step(seq, at_s, prompt=2000 if long else 0, decode=4, running=5, finished=[guilty] * done)
        )
        seq += 1
    return steps


def make_evidence(timelines=None, steps=None, **fields):
    timelines = [make_stalled(index) for index in range(4)] if timelines is None else timelines
    defaults = {
        "began_unix_s": EPOCH_S,
        "window_s": 20.0,
        "seen_by": SeenBy.GATEWAY,
        "timelines": tuple(timelines),
        "logs": {"w0": (StepLog(make_steps() if steps is None else steps),)},
        "metrics": (),
        "not_observed": ("the network's part",),
    }
    return Evidence(**{**defaults, **fields})


def judged(evidence):
    return diagnose(evidence, SLO, Known())


def page_of(evidence, verdict=None):
    return report_page(verdict or judged(evidence), evidence, "http://127.0.0.1:8080 (gateway, 1 engine)")


def test_every_section_stands_in_the_page_and_the_cause_in_its_head():
    evidence = make_evidence()
    verdict = judged(evidence)
    assert verdict.ruling is Ruling.SLOW_TO_STREAM
    page = page_of(evidence, verdict)
    assert re.findall("<h2>(.*?)</h2>", page) == [escape(title) for title in SECTIONS]
    strip = page.partition("<main>")[2].partition("</header>")[0].lstrip()
    assert strip.startswith('<header class="strip stream">')
    outcome = "4 requests: 4 succeeded"
    for said in ("Live traffic", outcome, "in 20 s", words.CAUSES[verdict.top.cause], "confidence: "):
        assert escape(said) in strip, said


@pytest.mark.parametrize("ruling", Ruling)
def test_every_ruling_has_its_colour_on_the_strip(ruling):
    verdict = replace(judged(make_evidence()), ruling=ruling, findings=())
    tones = {"slow_to_start": "start", "slow_to_stream": "stream", "failing": "failing", "healthy": "healthy"}
    tone = tones.get(ruling.value, "unknown")
    assert verdict_strip(verdict, "here", "Live traffic").startswith(f'<header class="strip {tone}">')
    assert f".strip.{tone} {{" in page_of(make_evidence())


def test_ids_can_be_copied_with_the_command_that_explains_them():
    page = page_of(make_evidence())
    for text in ("victim-0", "phasewise explain victim-0", "chatcmpl-guilty"):
        assert f'<button type="button" class="copy" data-copy="{text}"' in page, text
    for unknown in ({"seen_by": SeenBy.GENERATOR}, {"numbered": True}):
        alone = page_of(make_evidence(**unknown))
        assert 'data-copy="victim-0"' in alone
        assert "phasewise explain" not in alone, "no gateway keeps these requests, or not by these ids"


def test_the_command_of_an_id_with_blanks_and_quotes_is_one_for_the_shell():
    odd = "a 'b' <c>"
    shown, command = request(odd), escape("phasewise explain " + quote(odd))
    assert f'data-copy="{command}"' in shown
    assert "<c>" not in shown


def test_a_verdict_of_a_long_window_stays_under_one_and_a_half_megabytes():
    """More steps and chunks than are drawn, with ids as long as clients may send."""
    timelines = [make_stalled(index, request_id=f"{index}-{'x' * 200}") for index in range(300)]
    page = page_of(make_evidence(timelines, make_steps(until_s=400.0), window_s=400.0))
    assert len(page.encode()) < 1_500_000


def test_the_page_asks_nothing_of_the_network():
    page = page_of(make_evidence())
    assert not re.search(r'(?:src|href)="|url\(|@import', page)
    assert "default-src 'none'" in page


def test_the_stall_is_drawn_over_the_step_that_made_it_and_names_whose_prompt_it_was():
    evidence = make_evidence()
    verdict = judged(evidence)
    whole, near = worst_scenes(verdict, evidence)
    (event,) = whole.events
    assert event.cause is StallCause.PREFILL_CHUNK
    assert event.step.step.prompt_tokens == 2000
    assert {found.request_id for found in event.stalls} == {f"victim-{index}" for index in range(4)}
    assert whole.begin_unix_s <= near.begin_unix_s < event.begin_unix_s
    assert event.end_unix_s < near.end_unix_s < whole.end_unix_s
    assert near.events == whole.events
    label = step_chart(whole, "?", EPOCH_S).panels[-1].labels[0]
    assert label.x == pytest.approx(STALL_AT_S + STALL_S / 2, abs=0.05)
    page = page_of(evidence, verdict)
    assert re.search(r"<code>chatcmpl-guilty</code>.*?\(2,000 tokens\)", page)
    assert page.index("The worst stall") < page.index("chatcmpl-guilty") < page.index("What to do")


def test_bars_of_steps_are_as_wide_as_the_steps_took_and_distinguished_by_what_they_carried():
    evidence = make_evidence()
    (whole, *_) = worst_scenes(judged(evidence), evidence)
    bars = step_chart(whole, "?", EPOCH_S).series
    widths = {
        name: [box[2] - box[0] for box in bars[name].points]
        for name in ("prompts and streams", "streams only")
    }
    assert widths["prompts and streams"] == [pytest.approx(STALL_S, abs=0.01)]
    assert max(widths["streams only"]) == pytest.approx(0.05, abs=0.01)


def test_a_long_window_is_cut_to_its_worst_minute_and_says_so():
    late_s = 300.0
    evidence = make_evidence(
        [make_stalled(index, at_s=late_s) for index in range(3)],
        make_steps(late_s, until_s=330.0),
        window_s=330.0,
    )
    (whole, *_) = worst_scenes(judged(evidence), evidence)
    assert whole.end_unix_s - whole.begin_unix_s == pytest.approx(SPAN_S)
    assert whole.begin_unix_s < EPOCH_S + late_s < whole.end_unix_s
    assert "Shown: the 60 s with the worst stalls, of 330 s." in page_of(evidence)


def test_many_steps_and_streams_are_thinned_out_but_never_the_guilty_step(monkeypatch):
    monkeypatch.setattr(stall_scene, "STEP_LIMIT", 50)
    evidence = make_evidence([make_stalled(index) for index in range(STREAM_LIMIT + 6)])
    verdict = judged(evidence)
    (whole, *_) = worst_scenes(verdict, evidence)
    assert len(whole.steps) == 50
    assert len(whole.streams) == STREAM_LIMIT
    assert whole.events[0].step in whole.steps
    page = page_of(evidence, verdict)
    assert f"6 of {STREAM_LIMIT + 6} streams, none that stalled more" in page


@pytest.mark.parametrize("stalled", [0, 1, STREAM_LIMIT - 1, STREAM_LIMIT, STREAM_LIMIT + 3])
def test_streams_that_stalled_are_drawn_before_those_that_did_not(stalled):
    calm = [
        make_timeline([1.0 + 0.05 * token for token in range(30)], request_id=f"calm-{index}")
        for index in range(STREAM_LIMIT + 3)
    ]
    evidence = make_evidence([*(make_stalled(index) for index in range(stalled)), *calm])
    (whole, *_) = worst_scenes(judged(evidence), evidence)
    hit = [stream for stream in whole.streams if stream.request_id.startswith("victim")]
    assert len(whole.streams) == STREAM_LIMIT
    assert len(hit) == min(stalled, STREAM_LIMIT)


def test_without_a_step_record_the_page_is_small_and_draws_no_steps():
    page = page_of(make_evidence(logs={}))
    assert "The engine's steps" not in page
    assert len(page) < 100_000


def test_not_enough_traffic_still_makes_a_page():
    evidence = make_evidence([], logs={})
    verdict = judged(evidence)
    assert verdict.ruling is Ruling.NOT_ENOUGH_TRAFFIC
    assert "NOT ENOUGH TRAFFIC TO JUDGE" in page_of(evidence, verdict)


def test_only_the_page_of_a_probe_says_that_it_is_synthetic():
    live = make_evidence()
    probed = replace(live, synthetic=True)
    assert "synthetic" not in page_of(live, judged(live)).lower()
    page = page_of(probed, judged(probed))
    assert page.count("SYNTHETIC PROBE: SLOW TO STREAM") == 2, "title and headline"
    assert "<strong>Synthetic probe</strong>" in page


def test_names_that_come_from_outside_cannot_break_the_page():
    hostile = [make_stalled(index, request_id=f"{HOSTILE}{index}") for index in range(4)]
    evidence = make_evidence(hostile, not_observed=(HOSTILE,))
    page = report_page(judged(evidence), evidence, HOSTILE)
    assert "<img" not in page
    assert "&lt;img" in page


def make_engine(index, *, kv_tokens=4096, **fields):
    return EngineSurroundings(f"main-{index}", requests=10 + index, kv_tokens=kv_tokens, **fields)


def test_a_few_engines_stand_side_by_side_without_rows_that_nobody_could_fill():
    reported = engines_table([make_engine(0), make_engine(1, kv_tokens=None)])
    assert '<th class="figure">main-1</th>' in reported
    assert "KV tokens" in reported
    assert "round trip" not in reported


def test_what_many_engines_have_in_common_is_said_once():
    reported = engines_table([make_engine(index, prefix_cache_on=True) for index in range(50)])
    assert "All alike: KV tokens 4,096, prefix cache on." in reported
    assert reported.count("4,096") == 1
    assert reported.count("<tr>") == 51


def test_examples_are_the_median_a_slow_and_the_slowest_request():
    timelines = [make_timeline((0.1 * (index + 1), 9.0), request_id=f"r{index}") for index in range(11)]
    reported = {example.which: example.timeline.request_id for example in examples(timelines)}
    assert reported == {"median": "r5", "90th percentile": "r9", "slowest": "r10"}


def test_the_slowest_request_may_be_one_that_was_never_answered():
    gone = make_timeline((), request_id="gone", outcome=Outcome.CANCELLED, ended_s=30.0)
    *_, slowest = examples([make_timeline(), make_timeline(), gone])
    assert slowest.timeline is gone
    assert not slowest.answered


def test_rejected_requests_are_no_example_of_waiting():
    assert examples([make_timeline((), outcome=Outcome.REJECTED)]) == ()


def test_a_waterfall_names_every_part_that_its_request_waited_for():
    spans = [make_span(Part.ENGINE_QUEUE, 3.0), make_span(Part.PREFILL, 2.0)]
    slow = [make_timeline((5.5, 5.6, 5.7), request_id=f"r{index}", engine_spans=spans) for index in range(4)]
    page = page_of(make_evidence(slow, logs={}))
    for part in ("engine queue", "unexplained"):
        assert re.search(rf'class="swatch"[^>]*></i>{part}</span>|></i>{part}', page)


def test_every_part_that_a_ledger_names_is_defined_or_plain():
    plain = {"gateway", "cache lookup", "earlier attempts", "KV transfer", "prefill", "decode"}
    assert {OWN_PREFILL, *(phase.name for phase in PHASES.values())} - plain <= set(MEANINGS)


@pytest.mark.parametrize("cause", StallCause)
def test_every_cause_of_a_stall_has_words(cause):
    assert words.STALLS[cause]

"""The screen of a verdict: one screen, readable without colour, with the first thing to know first."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from phasewise.core.latency import PartTime
from phasewise.core.slo import Slo
from phasewise.core.statistics import Interval
from phasewise.core.timeline import Part, Source
from phasewise.diagnosis.advice.fix import Advice, Effect, Figure, Fix, PredictedChange
from phasewise.diagnosis.analysis.engine_load import EngineLoad, EngineSurroundings, SeenBy
from phasewise.diagnosis.analysis.streams import StreamSummary
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.analysis.ttft import StartSummary
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.analysis.workload_profile import WorkloadProfile, distribution
from phasewise.diagnosis.finding import Cause, Confidence, Fact, FactSource, Finding, Phase
from phasewise.diagnosis.verdict import Ruling, Verdict
from phasewise.report.diagnosis import words
from phasewise.report.diagnosis.screen import show
from phasewise.report.diagnosis.surroundings import NAMED, engines_in_words
from phasewise.report.diagnosis.words import interval_in_words, prediction_in_words
from phasewise.report.time_parts import share_in_words, start_rows, stream_rows, worth_a_row

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
SCREEN_LINES = 48
SUBJECT = "http://127.0.0.1:8080 (gateway, 50 engines)"


def make_start(**fields):
    parts = {
        Part.GATEWAY_WAIT: 0.001,
        Part.STEP_IN_FLIGHT: 0.05,
        Part.ENGINE_QUEUE: 1.2,
        Part.PREFILL: 0.4,
        Part.PREFILL_OTHERS: 0.3,
    }
    defaults = {
        "requests": 40,
        "unanswered": 0,
        "timed": 40,
        "step_timed": 40,
        "ttft_p50_s": 1.9,
        "ttft_p90_s": 3.1,
        "parts": tuple(PartTime(part, Source.STEP_RECORD, seconds) for part, seconds in parts.items()),
        "parts_mean_s": 2.0,
        "unexplained_s": 2.0 - sum(parts.values()),
        "unexplained_share_p50": 0.02,
        "unexplained_abs_p50_s": 0.05,
        "late": 30,
        "lost_s": 40.0,
    }
    return StartSummary(**{**defaults, **fields})


def make_stream(**fields):
    defaults = {
        "streams": 40,
        "step_timed": 40,
        "tpot_mean_s": 0.09,
        "tpot_p50_s": 0.08,
        "tpot_p90_s": 0.2,
        "gap_p50_s": 0.06,
        "gap_p99_s": 0.4,
        "gap_max_s": 1.5,
        "step_s": 0.06,
        "chunk_excess_s": 0.02,
        "unexplained_s": 0.01,
        "slow": 8,
        "lost_s": 9.0,
        "stall_lost_s": 4.0,
        "ledger": TokenLedger(0.06, 0.04, 0.01, 0.01, prompts_s=0.02, preempted_s=0.005, unexplained_s=0.005),
    }
    return StreamSummary(**{**defaults, **fields})


def make_profile(**fields):
    spread = distribution([100, 200, 400, 3000])
    defaults = {
        "requests": 40,
        "prompt_tokens": spread,
        "uncached_tokens": spread,
        "output_tokens": distribution([16, 32, 64]),
        "rate_per_s": 2.0,
        "burstiness": 1.0,
        "concurrency_mean": 4.0,
        "concurrency_max": 9,
        "shared_share": 0.4,
        "cached_share": 0.1,
        "implications": ("prefill-heavy: 12 prompt tokens to compute per output token",),
    }
    return WorkloadProfile(**{**defaults, **fields})


def make_summary(**fields):
    defaults = {
        "window_s": 20.0,
        "seen_by": SeenBy.GATEWAY,
        "start": make_start(),
        "stream": make_stream(),
        "workload": WorkloadShape(40, 2.0, 300.0, 3000.0, 32.0, 64.0, 0.1, 0.4, running_mean=3.5),
        "outcomes": (("succeeded", 38), ("timed_out", 2)),
        "profile": make_profile(),
    }
    return WindowSummary(**{**defaults, **fields})


def make_finding(cause=Cause.BATCH_CAP_LOW, phase=Phase.START, share=0.6, facts=2, **fields):
    defaults = {
        "lost_s": 20.0,
        "facts": tuple(
            Fact(f"fact {number} about {cause.value}", FactSource.STEP_RECORD) for number in range(facts)
        ),
        "confidence": Confidence.HIGH,
        "refuted_by": "nothing changes with twice the cap",
    }
    return Finding(phase, cause, share, **{**defaults, **fields})


def make_verdict(*findings, ruling=Ruling.SLOW_TO_START, summary=None, **fields):
    return Verdict(ruling, SLO, summary or make_summary(), findings, **fields)


def screen(verdict, width=100):
    written = io.StringIO()
    show(Console(file=written, width=width, highlight=False, no_color=True), verdict, SUBJECT)
    return written.getvalue()


def make_engine(index, waiting=0.4):
    engine_load = EngineLoad(3.0, 5, waiting, int(2 * waiting), 0.3, 0.1, 0.0, 0.0, 0.0)
    return EngineSurroundings(f"main-{index}", 10, engine_load=engine_load)


def make_fix(low=0.38, high=0.6, figure=Figure.TTFT_P50, **fields):
    moved = PredictedChange(figure, 2.0, (low + high) / 2, Interval(low, high, 0.9))
    still = PredictedChange(Figure.TPOT_P50, 0.1, 1.0, Interval(0.99, 1.01, 0.9))
    defaults = {
        "what": "let more run at once",
        "price": "each step takes longer",
        "aims_at": Figure.TTFT_P50,
        "engine_flag": "--max-num-seqs 16",
        "effect": Effect((still, moved), requests=40, draws=24, replay_off_by=0.1),
    }
    return Fix(**{**defaults, **fields})


def test_the_first_line_says_what_is_slow_why_and_how_sure_it_is():
    first = screen(make_verdict(make_finding())).splitlines()[0]
    assert first == "SLOW TO START: the batch limit is too low (confidence high)"


@pytest.mark.parametrize("ruling", Ruling)
def test_only_the_verdict_on_a_probe_says_that_it_is_synthetic(ruling):
    live, probed = (screen(make_verdict(ruling=ruling, summary=make_summary(synthetic=it))) for it in (0, 1))
    assert "SYNTHETIC" not in live
    assert probed.splitlines()[0] == f"SYNTHETIC PROBE: {live.splitlines()[0]}"


def test_a_phase_that_is_slow_besides_stands_in_the_first_line():
    first = screen(make_verdict(make_finding(), also_slow=Phase.STREAM)).splitlines()[0]
    assert first.endswith("; also slow to stream")


def test_that_most_clients_left_a_slow_server_stands_in_the_first_line():
    left = make_finding(Cause.CLIENTS_CANCEL, Phase.FAILING)
    first = screen(make_verdict(make_finding(), left)).splitlines()[0]
    assert first.endswith("; clients leave before the answer ends")
    alone = screen(make_verdict(left, ruling=Ruling.FAILING)).splitlines()[0]
    assert alone == "REQUESTS FAIL: clients leave before the answer ends (confidence high)"


def down(*names):
    return tuple(EngineSurroundings(name, 0, out_of_service="down for 15 seconds") for name in names)


def test_an_engine_that_is_out_of_service_stands_in_the_first_line():
    summary = make_summary(engines=(*down("a"), make_engine(1)))
    assert (
        screen(make_verdict(make_finding(), summary=summary))
        .splitlines()[0]
        .endswith("; a is out of service")
    )


def test_without_traffic_the_first_line_says_that_no_engine_serves():
    nothing = make_verdict(ruling=Ruling.NOT_ENOUGH_TRAFFIC, summary=make_summary(engines=down("a", "b")))
    shown = " ".join(screen(nothing).split())
    assert shown.startswith(
        "NOT ENOUGH TRAFFIC TO JUDGE; a, b are out of service, so there is none to serve requests"
    )
    assert "start them again" in shown
    assert "watch longer" not in shown


def test_unanswered_requests_add_up_in_words():
    start = replace(make_summary().start, requests=9, late=3, unanswered=3, gave_up=1, unfinished=2)
    assert words.ttft_in_words(start).endswith(
        "3 of 9 late, 1 ended without an answer, 2 of the unfinished without a first token yet"
    )


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_title_in_plain_words(cause):
    assert "_" not in words.CAUSES[cause]


def test_titles_report_causes_apart():
    assert len(set(words.CAUSES.values())) == len(Cause)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_full_verdict_of_any_cause_fits_one_screen(cause):
    verdict = make_verdict(
        make_finding(cause, facts=4),
        make_finding(Cause.LONG_PROMPTS, share=0.3),
        make_finding(Cause.DRIFT, Phase.MEASUREMENT, 0.0, facts=1),
        summary=make_summary(
            engines=tuple(make_engine(index) for index in range(50)),
            not_observed=("who sent what", "the network's part"),
        ),
        also_slow=Phase.STREAM,
    )
    lines = screen(verdict).splitlines()
    assert len(lines) <= SCREEN_LINES, "\n".join(lines)
    assert max(map(len, lines)) <= 100


def test_a_narrow_terminal_wraps_and_keeps_the_figures():
    reported = screen(make_verdict(make_finding()), width=60)
    assert max(map(len, reported.splitlines())) <= 60
    assert "1.20 s   60%" in reported


def test_the_top_finding_is_reported_with_its_sources_and_the_others_in_a_line():
    reported = screen(make_verdict(make_finding(), make_finding(Cause.LONG_PROMPTS, share=0.2)))
    assert "fact 0 about batch_cap_too_low [step record]" in reported
    assert "refuted if nothing changes with twice the cap" in reported
    assert "also: long prompts take long to prefill, 20% of the late requests' TTFT" in reported
    assert "fact 0 about long_prompts" not in reported


def test_a_caveat_comes_before_the_workload_and_says_whose_fault_it_is():
    lag = make_finding(Cause.GENERATOR_LAG, Phase.START, share=0.3, facts=1)
    drift = make_finding(Cause.DRIFT, Phase.MEASUREMENT, 0.0, facts=1)
    reported = screen(make_verdict(make_finding(), lag, drift))
    assert "not your server: the load generator sends late (fact 0 about generator_lag)" in reported
    assert "careful: latencies drifted during the window" in reported
    assert reported.index("not your server") < reported.index("workload")
    assert "also: the load generator" not in reported


def test_a_late_generator_as_the_cause_says_that_no_engine_flag_helps():
    reported = screen(make_verdict(make_finding(Cause.GENERATOR_LAG)))
    assert "not your server: no change to the engine would help" in reported


def test_the_ledgers_add_up_and_small_parts_share_a_row():
    start, stream = make_start(), make_stream()
    for rows, whole_s in (
        (start_rows(start), start.parts_mean_s),
        (stream_rows(stream), stream.tpot_mean_s),
    ):
        assert sum(row.seconds for row in rows) == pytest.approx(whole_s)
        shown = worth_a_row(rows, whole_s)
        assert sum(row.seconds for row in shown) == pytest.approx(whole_s, rel=0.005)
        assert shown[-1].name == "unexplained"
        assert len(shown) < len(rows)


def test_small_parts_are_named_together_where_they_can_be_seen():
    tiny = (
        PartTime(Part.GATEWAY_WAIT, Source.GATEWAY_CLOCK, 0.009),
        PartTime(Part.CLIENT_LAG, Source.CLIENT_CLOCK, 0.008),
    )
    queue = PartTime(Part.ENGINE_QUEUE, Source.STEP_RECORD, 0.9)
    start = make_start(parts=(*tiny, queue), parts_mean_s=1.0, unexplained_s=0.083)
    names = [(row.name, row.source) for row in worth_a_row(start_rows(start), 1.0)]
    assert names[1] == ("smaller parts", "gateway; generator lag")


def test_without_a_fit_steps_are_one_row_and_nothing_is_made_up():
    names = [row.name for row in stream_rows(make_stream(ledger=TokenLedger(0.06, prompts_s=0.03)))]
    assert names[:2] == ["decode steps", "other requests' prefill"]
    assert "reading the KV cache" not in names


def test_a_share_that_rounds_to_nothing_has_no_sign():
    assert share_in_words(-0.001, 1.0) == "0%"
    assert share_in_words(-0.2, 1.0) == "-20%"


def test_why_reports_the_share_of_the_latency_and_of_what_was_lost():
    reported = screen(make_verdict(make_finding(share=0.17, lost_s=30.0)))
    assert "Why  17% of the late requests' TTFT, 75% of the time lost beyond the objective" in reported


def test_a_quantile_that_is_only_a_bound_says_so():
    reported = screen(
        make_verdict(make_finding(), summary=make_summary(start=make_start(ttft_p90_at_least=True)))
    )
    assert "p90 at least 3.10 s" in reported


def test_fifty_engines_are_a_line_and_the_odd_one_out_another():
    engines = [make_engine(index, 12.0 if index == 3 else 0.4) for index in range(50)]
    summary, odd = engines_in_words(engines)
    assert summary.startswith("50 engines: 0-12 waiting, 3 running, 30% of KV cache used")
    assert odd == "main-3: 12 waiting, the others 0"


def test_engines_that_are_alike_are_only_summed_up():
    assert len(engines_in_words([make_engine(index, 0.3 + 0.01 * index) for index in range(50)])) == 1


def test_a_fleet_in_which_many_stand_out_names_a_few_and_counts_the_others():
    reported = engines_in_words([make_engine(index, 30.0 if index < 6 else 0.0) for index in range(50)])
    assert len(reported) == 1 + NAMED + 1
    assert reported[-1] == f"and {6 - NAMED} more outliers"


def test_engines_nobody_could_see_into_take_no_line():
    assert engines_in_words([EngineSurroundings("main-0", 10)]) == ()
    assert engines_in_words([]) == ()


@pytest.mark.parametrize(
    ("low", "high", "reported"),
    [
        (0.38, 0.60, "-40 to -62%"),
        (1.05, 1.20, "+5 to +20%"),
        (0.95, 1.12, "-5 to +12%"),
        (0.5, 0.5, "-50%"),
    ],
)
def test_a_predicted_change_is_an_interval_in_per_cent(low, high, reported):
    assert interval_in_words(Interval(low, high, 0.9)) == reported


def test_a_prediction_names_its_aim_first_and_leaves_out_what_stays():
    assert prediction_in_words(make_fix()) == "predicted: TTFT p50 -40 to -62%"


def test_a_prediction_that_may_go_either_way_says_so():
    reported = prediction_in_words(make_fix(0.4, 1.5))
    assert reported == "predicted, though it may not help: TTFT p50 -60 to +50%"


def test_more_throughput_is_a_gain():
    gain = make_fix(1.2, 1.6, Figure.THROUGHPUT, aims_at=Figure.THROUGHPUT)
    assert prediction_in_words(gain) == "predicted: tokens/s +20 to +60%"


def test_a_fix_that_cannot_be_predicted_says_why():
    fix = make_fix(effect=None, unpredictable="no such step was seen")
    assert prediction_in_words(fix) == "not predictable: no such step was seen"


def test_the_first_fix_is_reported_with_flag_prediction_price_and_check():
    fix = make_fix(fleet_line="pools: [{levers: {max_num_seqs: 16}}]", verify="phasewise compare f")
    advice = Advice(
        (fix, make_fix(what="add an engine", engine_flag=None)), ("speculation: it shortens decode",)
    )
    reported = screen(make_verdict(make_finding(), advice=advice))
    for line in (
        "  1. let more run at once",
        "     engine flag: --max-num-seqs 16",
        "     fleet file:  pools: [{levers: {max_num_seqs: 16}}]",
        "     predicted: TTFT p50 -40 to -62%",
        "     price: each step takes longer",
        "     verify: phasewise compare f",
        "Would not help    - speculation: it shortens decode",
    ):
        assert f"{line}\n" in reported
    assert "  2. add an engine; predicted: TTFT p50 -40 to -62%; price: each step takes longer\n" in reported


@pytest.mark.parametrize("ruling", [Ruling.HEALTHY, Ruling.FAILING, Ruling.NOT_ENOUGH_TRAFFIC])
def test_a_ruling_without_a_cause_says_what_to_do_next(ruling):
    reported = screen(make_verdict(ruling=ruling))
    assert "Next  " in reported
    assert "What to do" not in reported


def test_what_no_rule_explains_is_said():
    assert "no rule explains it" in screen(make_verdict())
    reported = screen(make_verdict(make_finding(), unexplained_share=0.4))
    assert "no cause was found for 40% of the lost time" in reported


def test_counters_alone_still_make_a_screen():
    bare = make_summary(start=None, stream=make_stream(ledger=None, step_s=None), profile=None)
    reported = screen(make_verdict(ruling=Ruling.HEALTHY, summary=bare))
    assert "prompts p50 300 p90 3000 tokens" in reported
    assert "the start was not" in reported


def test_what_no_cause_explains_is_said_though_there_is_no_cause():
    shown = screen(make_verdict(ruling=Ruling.FAILING, unexplained_share=1.0))
    assert "no cause was found for 100% of the lost time" in shown

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from phasewise.benchmark import results as report_module
from phasewise.benchmark.notes import TypicalTtft, typical_ttft
from phasewise.benchmark.results import BenchReport, errors_by_kind
from phasewise.benchmark.run import BenchRun, GeneratorHealth
from phasewise.benchmark.statistics.summary import Summary
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import Fit, Plan
from phasewise.benchmark.workload.prompts import Message
from phasewise.core.slo import Slo
from phasewise.core.timeline import TTFT_PARTS, Outcome, Part, Source, Timeline
from phasewise.core.units import milliseconds
from phasewise.report.bench.table import render, render_sweep, typical_rows
from phasewise.report.time_parts import PHASES
from tests.builders import EPOCH_S, make_span, make_timeline

SLO = Slo(ttft_s=1.0, tpot_s=0.15)


def build_report(run: BenchRun, slo: Slo, **more) -> BenchReport:
    return report_module.build_report(run, slo, np.random.default_rng(0), **more)


def make_run(timelines: list[Timeline], planned: int | None = None, **more) -> BenchRun:
    requests = tuple(
        PlannedRequest(index, None, (), 3, 100)
        for index in range(len(timelines) if planned is None else planned)
    )
    threads = tuple((planned,) for planned in requests)
    plan = Plan(threads, more.pop("load", OpenLoop(1.0)), more.pop("duration_s", None), fit=Fit(len(threads)))
    target = Target("http://e", "m", headers=((b"authorization", b"Bearer hidden"),))
    return BenchRun(target, plan, tuple(timelines), **{"wall_s": 10.0, "started_unix_s": EPOCH_S, **more})


def make_reported(ttft_s: float = 0.5, lag_s: float = 0.0, **more) -> Timeline:
    return make_timeline(
        (ttft_s, ttft_s + 0.1, ttft_s + 0.2),
        spans=[make_span(Part.CLIENT_LAG, lag_s, Source.CLIENT_CLOCK)],
        engine_spans=[make_span(Part.ENGINE_QUEUE, 0.1), make_span(Part.PREFILL, 0.2)],
        **more,
    )


def shown(report: BenchReport) -> str:
    console = Console(file=StringIO(), width=120, no_color=True)
    console.print(render(report))
    return console.file.getvalue()


def test_figures_follow_the_definitions():
    report = build_report(make_run([make_reported(0.5), make_reported(1.5)]), SLO)
    assert report.ttft_s.mean == pytest.approx(1.0)
    assert report.tpot_s.p50 == pytest.approx(0.1)
    assert report.itl_pooled_s.count == 4
    assert report.e2e_s.max == pytest.approx(1.7)
    assert (report.goodput.met, report.goodput.offered) == (1, 2)
    assert report.goodput_per_s == pytest.approx(1 / 1.7)
    assert report.output_tokens_per_s == pytest.approx(6 / 1.7)
    assert report.void == ()


def test_failures_are_offered_and_counted_by_kind():
    failed = [
        make_timeline((), outcome=Outcome.FAILED, reason="http_500", output_tokens=None),
        make_timeline((), outcome=Outcome.FAILED, reason="http_500", output_tokens=None),
        make_timeline((0.1,), outcome=Outcome.TIMED_OUT, output_tokens=None),
    ]
    report = build_report(make_run([*failed, make_reported()]), SLO)
    assert (report.offered, report.succeeded) == (4, 1)
    assert report.goodput.share == 0.25
    assert report.errors == {"http_500": 2, "timed_out": 1}
    assert report.e2e_s.count == 1
    assert report.without_engine_timings == 3


def test_a_run_of_nothing_but_failures_has_no_figures_rather_than_zeros():
    timelines = [make_timeline((), outcome=Outcome.FAILED, reason="rejected", output_tokens=None)]
    report = build_report(make_run(timelines), SLO)
    assert report.ttft_s.p50 is None
    assert report.output_tokens_per_s is None
    assert report.typical_ttft is None
    assert "rejected" in shown(report)
    assert errors_by_kind([]) == {}


@given(st.lists(st.floats(0.31, 50.0), min_size=1, max_size=40))
def test_the_typical_parts_and_the_unexplained_add_up_to_ttft(ttfts_s):
    typical = typical_ttft([make_reported(ttft_s) for ttft_s in ttfts_s])
    assert typical is not None
    assert sum(part.seconds for part in typical.parts) + typical.unexplained_s == pytest.approx(
        typical.ttft_s
    )
    assert min(ttfts_s) <= typical.ttft_s * (1 + 1e-9)
    assert typical.ttft_s <= max(ttfts_s) * (1 + 1e-9)


def test_typical_parts_that_overlap_leave_nothing_negative():
    typical = typical_ttft([make_reported(0.29)])
    assert typical is not None
    assert typical.unexplained_s == 0.0
    assert sum(part.seconds for part in typical.parts) == pytest.approx(0.29)


@pytest.mark.parametrize(("rest_s", "name"), [(0.0028, "network and parsing"), (0.02, "unexplained")])
def test_what_no_source_resolves_is_not_called_unexplained(rest_s, name):
    assert typical_rows(TypicalTtft(1, rest_s, (), rest_s))[-1].name == name


def test_the_typical_request_is_one_around_the_median():
    typical = typical_ttft([make_reported(ttft_s) for ttft_s in (0.4, 0.5, 0.6, 0.7, 9.0)])
    assert typical is not None
    assert 0.5 <= typical.ttft_s <= 0.7


def test_requests_the_engine_did_not_time_do_not_dilute_the_parts():
    untimed = make_timeline((3.0, 3.1), outcome=Outcome.CANCELLED, attempts=())
    typical = typical_ttft([make_reported(0.5), untimed, untimed])
    assert typical is not None
    assert (typical.requests, typical.ttft_s) == (1, 0.5)
    alone = typical_ttft([untimed])
    assert alone is not None
    assert alone.unexplained_s == alone.ttft_s == 3.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cut_short": True, "planned": 9}, "cut short: 8 planned"),
        ({"fixed_lengths": False}, "does not accept fixed output lengths"),
        ({"load": ClosedLoop(1), "duration_s": 60.0}, "used up"),
    ],
)
def test_what_limits_the_figures_is_said(changes, word):
    report = build_report(make_run([make_reported()], **changes), SLO)
    assert any(word in note for note in report.notes)
    assert word in shown(report)


def test_a_generator_that_was_late_voids_the_run_at_its_head():
    report = build_report(make_run([make_reported(0.5, lag_s=0.1)]), SLO)
    assert "sent late: 100 ms at p50" in report.void[0]
    assert "VOID: requests were sent late" in shown(report)
    late = GeneratorHealth(loop_lags_s=(0.02,) * 200)
    report = build_report(make_run([make_reported()], health=late), SLO)
    assert "stamped late" in report.void[0]


def test_requests_before_the_window_are_not_counted_and_tokens_outside_it_neither():
    timelines = [make_reported(0.5, started_unix_s=EPOCH_S + at) for at in range(10)]
    report = build_report(make_run(timelines), SLO, warm_up_requests=4)
    assert (report.offered, report.ttft_s.count, report.window.start_s, report.window.end_s) == (
        6,
        6,
        4.0,
        9.0,
    )
    # Requests that arrived from 4 s to 8 s ended in the window, three tokens each; the last one after it.
    assert report.output_tokens_per_s == pytest.approx(5 * 3 / 5)
    assert report.ended_in_window == 5
    assert report.goodput_per_s == report.requests_per_s == pytest.approx(5 / 5)
    assert "the first 4 left out as warm-up" in shown(report)


def test_what_was_under_way_when_somebody_stopped_the_run_is_no_failure_of_the_server():
    stopped = make_timeline((0.1,), outcome=Outcome.CANCELLED, reason="cut_short", output_tokens=None)
    report = build_report(make_run([make_reported(), stopped], cut_short=True), SLO)
    assert (report.goodput.met, report.goodput.offered) == (1, 1)
    assert report.errors == {"cut_short": 1}
    said = "The run was cut short with 1 request still running: 0 planned requests were not sent."
    assert report.warnings == (said,)
    console = Console(file=StringIO(), width=120, no_color=True)
    console.print(render(report))
    assert console.file.getvalue().splitlines()[1] == said
    assert "requests were not answered" not in console.file.getvalue()


def test_percentiles_have_intervals_where_the_requests_are_enough():
    rng = np.random.default_rng(3)
    report = build_report(make_run([make_reported(ttft_s) for ttft_s in rng.lognormal(-1.0, 0.3, 60)]), SLO)
    low, high = report.ttft_s.p50_interval
    assert low < report.ttft_s.p50 < high
    assert report.ttft_s.p90_interval is not None
    assert (report.ttft_s.p99, report.ttft_s.p99_interval) == (None, None)
    assert build_report(make_run([make_reported()] * 5), SLO).ttft_s.p50_interval is None


def test_a_jump_of_level_within_the_window_is_told():
    rng = np.random.default_rng(3)
    levels = [*rng.lognormal(-1.5, 0.1, 80), *rng.lognormal(-0.5, 0.1, 80)]
    timelines = [make_reported(ttft_s, started_unix_s=EPOCH_S + at) for at, ttft_s in enumerate(levels)]
    report = build_report(make_run(timelines), SLO, warm_up_requests=0)
    (shift,) = [shift for shift in report.shifts if shift.metric == "TTFT"]
    assert 75 <= shift.at_s <= 85
    assert "TTFT shifted" in shown(report)


def test_a_cache_that_was_not_cold_is_called_out():
    words = Message("user", " ".join(["word"] * 90))
    planned = [PlannedRequest(index, None, (words,), 3, 100) for index in range(2)]
    run = make_run([make_reported(request_id=f"run-{index}", cached_tokens=80) for index in range(2)])
    run = replace(run, plan=replace(run.plan, threads=tuple((each,) for each in planned)))
    notes = build_report(run, SLO).notes
    assert any("was not cold: 140 of 200 prompt tokens" in note for note in notes)
    assert not any("not cold" in note for note in build_report(replace(run, primed=True), SLO).notes)


def test_a_sweep_is_a_row_per_load_with_what_spoilt_it():
    spoilt = build_report(make_run([make_reported(0.5, lag_s=0.1)]), SLO)
    console = Console(file=StringIO(), width=120, no_color=True)
    console.print(
        render_sweep([("1 req/s", build_report(make_run([make_reported()]), SLO)), ("2 req/s", spoilt)])
    )
    text = console.file.getvalue()
    assert "2 req/s: VOID: requests were sent late" in text
    assert "SLO met: the share within TTFT 1 s and TPOT 150 ms" in text


@pytest.mark.parametrize("label", ["8 req/s", "0.25 conversations/s", "2 req/s (gamma, burstiness 0.5)"])
@pytest.mark.parametrize("scale", [0.001, 1.0, 40.0])
def test_a_sweep_fits_80_columns_and_breaks_no_number(label, scale):
    spread = Summary(99, *[1.234 * scale] * 5, *[(1.0023 * scale, 2.5684 * scale)] * 3)
    times = dict.fromkeys(("ttft_s", "tpot_s", "itl_pooled_s", "e2e_s"), spread)
    report = replace(
        build_report(make_run([make_reported()]), SLO), **times, output_tokens_per_s=123_456.0, notes=()
    )
    console = Console(file=StringIO(), width=80, no_color=True)
    console.print(render_sweep([(label, report), (label, report)]))
    table, _, _ = console.file.getvalue().partition("SLO met:")
    low, high = milliseconds(1.0023 * scale), milliseconds(2.5684 * scale)
    words = table.replace("–", "– ").split()
    assert max(map(len, table.splitlines())) <= 80
    # Two loads with five intervals each.
    assert (words.count(f"{low}–"), words.count(high)) == (10, 10)
    assert words.count("123,456") == 2


def test_an_engine_without_timings_is_named_with_its_flag():
    report = build_report(make_run([make_timeline()]), SLO)
    assert any("--enable-per-request-metrics" in note for note in report.notes)


def test_the_report_is_json_without_secrets():
    report = build_report(make_run([make_reported()]), SLO)
    text = orjson.dumps(report.to_dict()).decode()
    assert json.loads(text)["typical_ttft"]["parts"][0]["part"] == "client_lag"
    assert json.loads(text)["goodput"] == {"per_s": pytest.approx(1 / 0.7), "share": 1.0, "met": 1}
    assert json.loads(text)["definitions"]["TTFT"].startswith("from the moment")
    assert "hidden" not in text


def test_every_part_of_ttft_has_a_name_for_people():
    assert set(PHASES) == {*TTFT_PARTS, Part.DECODE}
    assert "engine queue" in shown(build_report(make_run([make_reported()]), SLO))

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.benchmark.engine_watch import EngineRecord
from phasewise.benchmark.results import build_report
from phasewise.benchmark.run import BenchRun, GeneratorHealth
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop
from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import Plan
from phasewise.core import latency
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Part, Source
from phasewise.core.units import bound, duration, durations, share
from phasewise.report.bench.measured import gaps_by_concurrency
from phasewise.report.bench.page import (
    DETAILED,
    Measured,
    goodput_by_load,
    render_page,
    short_labels,
    trade_offs,
)
from phasewise.report.bench.run_charts import (
    BAR_LIMIT,
    POINT_LIMIT,
    distributions,
    fullness,
    request_bars,
    ttft_by_prompt,
)
from phasewise.report.charts import (
    Axis,
    Chart,
    ChartSeries,
    Mark,
    Panel,
    axis,
    even_sample,
    fitting_axis,
    log_ticks,
    rows_axis,
)
from phasewise.report.drawn_charts import drawn
from phasewise.report.markup import Html, element, embedded_json
from phasewise.report.time_parts import PHASES, UNEXPLAINED, stretches
from tests.builders import EPOCH_S, make_span, make_step, make_timeline

SLO = Slo(ttft_s=1.0, tpot_s=0.15)
HOSTILE = "</script><img src=x onerror=alert(1)> & co"
SECTIONS = (
    "Key figures",
    "Where TTFT goes",
    "Latency distributions",
    "Requests over time",
    "What the latencies depend on",
    "Engine load",
    "Engine counters and client measurements",
    "Requests that were not answered",
    "This run",
    "Definitions",
    "Repeat this run",
)


def make_answer(index=0, ttft_s=0.5, **fields):
    return make_timeline(
        tuple(ttft_s + 0.1 * chunk for chunk in range(5)),
        spans=[make_span(Part.CLIENT_LAG, 0.001, Source.CLIENT_CLOCK)],
        engine_spans=[make_span(Part.ENGINE_QUEUE, 0.1), make_span(Part.PREFILL, 0.2)],
        request_id=f"r{index}",
        **{"started_unix_s": EPOCH_S + index * 0.5, **fields},
    )


def make_measured(timelines=None, *, label="2 req/s", load=None, warm_up=0, **fields):
    if timelines is None:
        timelines = [make_answer(index, 0.4 + 0.01 * (index % 7)) for index in range(30)]
    planned = tuple(PlannedRequest(index, None, (), 5, 100) for index in range(len(timelines)))
    run = BenchRun(
        **{
            "target": Target("http://127.0.0.1:8000", "some/model"),
            "plan": Plan.of_singles(planned, load or OpenLoop(2.0)),
            "timelines": tuple(timelines),
            "wall_s": 20.0,
            "started_unix_s": EPOCH_S,
            **fields,
        }
    )
    return Measured(run, build_report(run, SLO, np.random.default_rng(1), warm_up), label)


def page_of(*measured, command="phasewise bench http://127.0.0.1:8000", facts=None):
    return render_page(measured, command=command, circumstances=facts or {"Seed": "7"})


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_page_has_every_section_in_order():
    shown = [heading.replace("&#x27;", "'") for heading in headings(page_of(make_measured()))]
    assert shown == list(SECTIONS)


def test_every_chart_says_what_its_axes_are_and_how_to_read_it():
    engine = EngineRecord(steps=tuple(make_step(seq, seq * 0.1, running=2) for seq in range(50)))
    page = page_of(make_measured(engine=engine), make_measured(label="4 req/s", load=OpenLoop(4.0)))
    charts = 3 + (3 + 1 + 2 + 2) + (3 + 1 + 2)
    assert page.count('class="plot"') == charts
    assert len(re.findall(r'<p class="[xy]-title">[^<]+</p>', page)) == 2 * charts
    assert len(re.findall(r'class="ticks [xy]( many)?"><span', page)) == 2 * charts
    assert page.count("<figcaption>") == page.count("<figure>")


def test_a_page_asks_nothing_of_the_network():
    page = page_of(make_measured(), make_measured(label="4 req/s"))
    assert re.findall(r"""(?<!-)(?:src|href|action|data)\s*=\s*["']?[^"'>\s]+""", page) == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", page)
    assert "default-src 'none'" in page


def test_names_from_outside_are_escaped_everywhere():
    timelines = [make_answer(), make_timeline((), outcome=Outcome.FAILED, reason=HOSTILE)]
    hostile = make_measured(timelines, target=Target(f"http://x/{HOSTILE}", HOSTILE), label=HOSTILE)
    page = page_of(hostile, replace(hostile, label=HOSTILE + "2"), command=HOSTILE, facts={HOSTILE: HOSTILE})
    assert "<img" not in page
    assert page.count("</script>") == 1, "the page's own"


def test_the_strip_comes_first_and_says_what_was_measured_and_how_to_get_a_verdict():
    page = page_of(make_measured(), command="phasewise bench http://x --rate 2")
    strip, _, rest = page.partition("<main>")[2].partition("</header>")
    assert strip.lstrip().startswith('<header class="strip measured">')
    for said in ("Synthetic load", "30 of 30 requests answered", "TTFT p50 430 ms", "not judged"):
        assert said in strip, said
    assert "phasewise bench http://x --rate 2 --diagnose" in strip
    assert "<h2>" in rest
    assert "<h2>" not in strip


def test_the_strip_of_a_void_run_is_not_that_of_a_good_one():
    page = page_of(make_measured(health=GeneratorHealth(held_back=3)))
    assert page.partition("<main>")[2].lstrip().startswith('<header class="strip unknown">')
    assert "<h1>VOID: " in page


def test_a_verdict_takes_the_place_of_the_strip_and_its_diagnosis_comes_before_the_figures():
    page = render_page(
        [make_measured()],
        command="",
        circumstances={},
        verdict_strip=Html("<header>judged</header>"),
        diagnosis=Html("<p>because</p>"),
    )
    assert page.index("judged") < page.index("because") < page.index("Key figures")
    assert "not judged" not in page


@pytest.mark.parametrize("loads", [1, 12])
def test_a_page_of_many_long_runs_stays_under_one_and_a_half_megabytes(loads):
    """Each run has more requests, gaps and steps than a chart draws."""
    timelines = [make_answer(index, 0.4 + 0.001 * (index % 997)) for index in range(1200)]
    steps = tuple(make_step(seq, seq * 0.1, running=seq % 90) for seq in range(6_000))
    run = make_measured(timelines, engine=EngineRecord(steps=steps), wall_s=600.0)
    page = page_of(*(replace(run, label=f"{load} req/s") for load in range(1, loads + 1)))
    assert len(page.encode()) < 1_500_000
    assert page.count("<details") == (min(loads, DETAILED) if loads > 1 else 0)
    assert (f"Shown: {DETAILED} of {loads} loads" in page) == (loads > DETAILED)


def test_a_void_run_says_so_loudly_and_why():
    fine = page_of(make_measured())
    assert 'class="banner' not in fine
    page = page_of(make_measured(health=GeneratorHealth(held_back=3), cut_short=True))
    assert "This run is void" in page
    assert "3 requests were held back" in page
    assert "The run was interrupted." in page


def test_a_void_point_of_a_sweep_is_named():
    page = page_of(make_measured(), make_measured(label="9 req/s", health=GeneratorHealth(held_back=3)))
    assert "<li>9 req/s: 3 requests were held back" in page


@pytest.mark.parametrize("count", [0, 1])
def test_next_to_nothing_still_makes_a_page(count):
    page = page_of(make_measured([make_answer(index) for index in range(count)]))
    assert len(headings(page)) == len(SECTIONS)
    assert "too few requests" in page


def test_a_run_without_answers_shows_no_figures_rather_than_zeros():
    page = page_of(make_measured([make_timeline((), outcome=Outcome.FAILED, reason="rejected")]))
    assert "rejected" in page
    assert "Not observed: no request received a first token." in page
    assert "TTFT by prompt length is missing" in page


def test_without_an_engine_the_page_says_why_its_charts_are_missing():
    page = page_of(make_measured())
    assert "this address does not serve vLLM&#x27;s metrics" in page
    assert "Does the engine keep up?" not in page


def test_the_engine_s_fullness_is_drawn_where_it_reported():
    steps = tuple(make_step(seq, seq * 0.1, running=seq % 5, waiting=1) for seq in range(5000))
    measured = make_measured(engine=EngineRecord(steps=steps), wall_s=600.0)
    *_, requests = fullness(measured)
    running = requests.series["running"].points
    assert max(value for _, value in running) == 4
    assert len(running) <= POINT_LIMIT
    assert "Does the engine keep up?" in page_of(measured)


def test_the_marks_of_a_distribution_are_the_report_s_percentiles():
    measured = make_measured()
    ttft, tpot, itl = distributions(measured)
    report = measured.report
    for chart, summary in ((ttft, report.ttft_s), (tpot, report.tpot_s), (itl, report.itl_pooled_s)):
        marks = {name.split()[0]: series.points for name, series in chart.series.items() if series.listed}
        assert marks["p50"] == ((pytest.approx(summary.p50 * 1000), 0.5),)
        assert marks["all"][-1] == (pytest.approx(summary.max * 1000, abs=1e-3), 1.0)
    assert not [name for name in ttft.series if name.startswith("p99")]
    assert f"p50 {duration(report.ttft_s.p50)}" in ttft.series


def test_a_sweep_draws_throughput_against_latency_with_intervals():
    points = [make_measured(label=f"{rate} req/s", load=OpenLoop(rate)) for rate in (1, 2, 4)]
    ttft, _ = trade_offs(points)
    ((x, y), *_) = ttft.series["TTFT p50"].points
    summary = points[0].report.ttft_s
    assert x == pytest.approx(points[0].report.output_tokens_per_s, abs=0.01)
    assert y == pytest.approx(summary.p50 * 1000, abs=1e-3)
    interval = ttft.series["TTFT p50 interval"].points[0]
    assert interval[1::2] == pytest.approx([end * 1000 for end in summary.p50_interval], abs=1e-3)
    assert ttft.series["SLO 1 s"].points[0][1] == SLO.ttft_s * 1000
    assert [at for at, _ in goodput_by_load(points)[0].series["met the SLO"].points] == [1, 2, 4]
    page = page_of(*points)
    assert headings(page)[:3] == ["Latency against load", "All loads", "Load by load"]
    assert page.count("<details") == 3
    assert page.index(" open>") > page.index("<summary>2 req/s")


def test_a_sweep_of_concurrencies_is_drawn_against_them():
    points = [make_measured(label=f"{n} at once", load=ClosedLoop(n)) for n in (1, 8)]
    (drawn,) = goodput_by_load(points)
    assert drawn.x.title == "requests at once"
    assert [at for at, _ in drawn.series["met the SLO"].points] == [1, 8]
    (mixed,) = goodput_by_load([points[0], make_measured()])
    assert mixed.x.title == "point of the sweep"
    assert [at for at, _ in mixed.series["met the SLO"].points] == [1, 2]


def test_what_all_labels_share_is_said_once():
    assert short_labels(["2 req/s", "4 req/s"]) == (["2", "4"], "in req/s")
    assert short_labels(["2 req/s", "8 at once"]) == (["2 req/s", "8 at once"], "with it")
    assert short_labels(["base", "new"]) == (["base", "new"], "with it")


def test_a_sample_of_the_bars_is_called_one():
    many = [make_answer(index) for index in range(BAR_LIMIT + 100)]
    drawn = request_bars(make_measured(many))
    assert f"Shown: {BAR_LIMIT} of {BAR_LIMIT + 100} requests" in drawn.caption
    rows = [row for _, row, _, _ in drawn.series["decode"].points]
    assert (len(rows), rows[0], rows[-1]) == (BAR_LIMIT, 1, BAR_LIMIT + 100)
    assert "Shown:" not in request_bars(make_measured(many[:BAR_LIMIT])).caption


def test_bars_mark_failures_and_shade_the_warm_up():
    timelines = [make_answer(index) for index in range(10)]
    timelines[4] = replace(timelines[4], outcome=Outcome.FAILED, reason="cut_off")
    series = request_bars(make_measured(timelines, warm_up=3)).series
    assert [row for _, row in series["not answered in full"].points] == [5]
    assert series["warm-up"].points[0][2] == pytest.approx(1.5)
    assert series["prefill"].points[1][0] == pytest.approx(0.5 + 0.101)


@given(
    queue_s=st.floats(0.0, 2.0),
    prefill_s=st.floats(0.0, 2.0),
    lag_s=st.floats(0.0, 0.1),
    ttft_s=st.floats(0.1, 3.0),
)
def test_stretches_fill_a_request_without_gap_or_overlap(queue_s, prefill_s, lag_s, ttft_s):
    timeline = make_timeline(
        (ttft_s, ttft_s + 1.0),
        spans=[make_span(Part.CLIENT_LAG, lag_s, Source.CLIENT_CLOCK)],
        engine_spans=[make_span(Part.ENGINE_QUEUE, queue_s), make_span(Part.PREFILL, prefill_s)],
    )
    at_s = 0.0
    for stretch in stretches(timeline):
        assert stretch.start_s == pytest.approx(at_s)
        assert stretch.seconds > 0
        at_s += stretch.seconds
    assert at_s == pytest.approx(latency.e2e_s(timeline))
    assert stretches(timeline)[-1].start_s == ttft_s


def test_a_request_that_was_never_answered_is_unexplained_once_sent():
    lag = make_span(Part.CLIENT_LAG, 0.2, Source.CLIENT_CLOCK)
    timeline = make_timeline((), spans=[lag], outcome=Outcome.TIMED_OUT, ended_s=3.0)
    shown = [(stretch.phase, stretch.start_s) for stretch in stretches(timeline)]
    assert shown == [(PHASES[Part.CLIENT_LAG], 0.0), (UNEXPLAINED, 0.2)]


def test_cached_prompts_are_distinguished():
    timelines = [make_answer(index, cached_tokens=64 if index % 2 else 0) for index in range(6)]
    series = ttft_by_prompt(make_measured(timelines)).series
    assert len(series["nothing cached"].points) == len(series["prefix cached"].points) == 3
    assert series["prefix cached"].hollow


def test_concurrency_is_counted_by_the_client_where_no_steps_are_known():
    apart = [make_answer(0), make_answer(1, started_unix_s=EPOCH_S + 50)]
    assert [group.low for group in gaps_by_concurrency(make_measured(apart))] == [1]
    together = [make_answer(index, started_unix_s=EPOCH_S) for index in range(3)]
    (group,) = gaps_by_concurrency(make_measured(together))
    assert (group.low, group.gaps, group.p50_s) == (3, 12, pytest.approx(0.1))


def test_concurrency_is_the_engine_s_count_where_steps_were_recorded():
    steps = tuple(make_step(seq, seq * 0.05, running=7) for seq in range(40))
    (group,) = gaps_by_concurrency(make_measured([make_answer()], engine=EngineRecord(steps=steps)))
    assert group.low == 7


def test_loads_are_put_together_so_that_boxes_can_be_distinguished():
    engine_load = [make_answer(index, started_unix_s=EPOCH_S + 0.001 * index) for index in range(100)]
    groups = gaps_by_concurrency(make_measured(engine_load))
    assert groups[-1].high >= 100
    assert all(later.low > earlier.high for earlier, later in pairwise(groups))


def test_the_colours_of_the_page_cover_every_name_used():
    engine = EngineRecord(steps=tuple(make_step(seq, seq * 0.1) for seq in range(50)))
    page = page_of(make_measured(engine=engine, warm_up=2), make_measured(label="4 req/s"))
    defined = set(re.findall(r"^\s*(--[a-z-]+):", page, re.MULTILINE))
    used = set(re.findall(r"var\((--[a-z-]+)\)", page)) - {"--c", "--gutter", "--tone"}
    assert used | {phase.colour for phase in PHASES.values()} <= defined


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 ms"),
        (0.000261, "0.261 ms"),
        (0.0123, "12.3 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1.00 s"),
        (75.26, "75.3 s"),
        (1234.5, "1,234 s"),
        (-0.05, "-50.0 ms"),
    ],
)
def test_durations_have_three_digits_and_the_unit_people_use(seconds, text):
    assert duration(seconds) == text


def test_other_figures_are_written_for_people():
    assert durations((0.573, 1.02)) == "0.573 to 1.02 s"
    assert bound(1.0) == "1 s"
    assert bound(0.12) == "120 ms"
    assert [share(value) for value in (0.999, 1.0, 0.0001, 0.71, None)] == [
        "99.9%",
        "100%",
        "0.1%",
        "71%",
        "–",
    ]


@given(st.lists(st.integers(), max_size=60), st.integers(2, 50))
def test_a_sample_is_even_and_keeps_both_ends(items, limit):
    sample = even_sample(items, limit)
    assert len(sample) == min(len(items), limit)
    if items:
        assert (sample[0], sample[-1]) == (items[0], items[-1])


@given(st.floats(1e-3, 1e3), st.floats(1.0, 1e6))
def test_a_logarithmic_axis_has_readable_ticks_within_its_range(low, ratio):
    found = fitting_axis("TTFT", [low, low * ratio])
    assert found.log == (ratio >= 20)
    if found.log:
        assert 1 <= len(log_ticks(low, low * ratio)) <= 9


@given(st.floats(0.0, 1e6), st.floats(1e-3, 1e6), st.booleans())
def test_an_axis_holds_its_values_and_has_a_few_ticks_in_order(low, span, from_zero):
    found = axis("x", [low, low + span], from_zero=from_zero)
    assert found.low <= low <= low + span <= found.high
    assert 2 <= len(found.ticks) <= 9
    places = [found.place(tick) for tick, _ in found.ticks]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)


@given(st.floats(-1e9, 1e9))
def test_whatever_is_beyond_an_axis_is_drawn_at_its_end(value):
    for found in (axis("x", [0.0, 10.0]), fitting_axis("x", [0.1, 100.0]), rows_axis("row", [], 5)):
        assert 0 <= found.place(value) <= 1


def test_rows_count_from_the_top():
    rows = rows_axis("row", [(1, "first"), (5, "last")], 5)
    assert rows.place(1) > rows.place(3) > rows.place(5)


def test_a_drawing_has_a_mark_at_every_point_in_its_place():
    series = (
        ChartSeries("line", "--accent", Mark.LINE, ((0, 0), (5, 10), (10, 0)), "{y} at {x}"),
        ChartSeries("dots", "--prefill", Mark.DOTS, ((10, 10),), texts=(HOSTILE,)),
        ChartSeries("boxes", "--shade", Mark.BOXES, ((0, 0, 5, 10),)),
        ChartSeries("segments", "--bad", Mark.SEGMENTS, ((0, 5, 10, 5),), dashed=True),
    )
    ten = Axis("ten", 0, 10, ((0, "0"), (10, "10")))
    svg = drawn(Chart("why?", "so", ten, (Panel(ten, series),)))
    paths = re.findall(r'<path d="([^"]*)" class="([a-z ]+)"', svg)
    assert paths == [
        ("M0 1000L500 0L1000 1000", "line"),
        ("M1000 0h0", "dots"),
        ("M0 1000H500V0H0z", "boxes"),
        ("M0 500H1000", "segments dashed"),
    ]
    assert svg.count('class="key') == len(series)
    assert "<img" not in svg


@given(st.text())
def test_markup_escapes_what_is_not_markup(text):
    shown = element("p", text, Html("<b>x</b>"), title=text)
    assert shown.count("<") == 4
    assert json.loads(embedded_json({"x": text})) == {"x": text}
    assert "<" not in embedded_json(text)

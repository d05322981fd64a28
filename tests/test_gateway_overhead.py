"""The gateway's overhead bench: its figures, how it finds its tools, and a short run of the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.overhead.figures import difference, largest_held, ratio, rising
from benchmarks.overhead.limits import arrives_on_time, rate_load
from benchmarks.overhead.loads import Row
from benchmarks.overhead.plan import full_plan, quick_plan
from benchmarks.overhead.summary import AGAIN, DIRECT, OURS, Measured, ratios, summary
from benchmarks.overhead.tools import CannotMeasure, PeerMissing, Tools, find_bench, with_ports
from tests.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gateway_overhead.py"

costs = st.floats(1.0, 1e6)


def make_row(arm=OURS, load="request_1kb", **fields):
    usual = {"cpu_s": 1.0, "requests": 10_000, "chunks": 0, "requests_per_s": 5000.0, "chunks_per_s": 0.0}
    unknown = {"errors": 0, "ttft_p50_us": None, "travel_p50_us": None, "travel_p99_us": None}
    return Row(arm=arm, load=load, **(usual | unknown | fields))


def make_rounds(arm, *cpu_s, load="request_1kb"):
    return [make_row(arm, load, cpu_s=each) for each in cpu_s]


# --- figures ------------------------------------------------------------------------------------------------


@given(st.lists(costs, min_size=4, max_size=20), st.floats(0.01, 100))
def test_a_gateway_that_always_costs_so_many_times_another_is_told_exactly_so(theirs, times):
    found = ratio([(each * times, each) for each in theirs])
    assert found.median == pytest.approx(times)
    assert found.lower == pytest.approx(times)
    assert found.upper == pytest.approx(times)


@given(st.lists(st.tuples(costs, costs), min_size=4, max_size=20))
def test_swapping_the_arms_turns_the_interval_of_their_ratio_over(pairs):
    found, swapped = ratio(pairs), ratio([(b, a) for a, b in pairs])
    assert found.lower == pytest.approx(1 / swapped.upper)
    assert found.upper == pytest.approx(1 / swapped.lower)


def test_the_interval_is_students_t_over_the_rounds():
    # Of 1..5: mean 3, standard deviation 1.5811, t(0.975, 4) = 2.7764.
    found = difference([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.median, found.rounds) == (3.0, 5)
    assert (found.lower, found.upper) == (
        pytest.approx(3 - 1.9632, abs=1e-3),
        pytest.approx(4.9632, abs=1e-3),
    )


def test_too_few_rounds_have_a_middle_and_no_interval():
    found = ratio([(2.0, 1.0), (4.0, 1.0), (8.0, 1.0)])
    assert found.median == pytest.approx(4.0)
    assert found.lower is None
    assert found.upper is None


def test_rounds_without_two_figures_are_not_compared():
    assert ratio([(0.0, 1.0), (1.0, 0.0)]) is None
    assert ratio([(3.0, 1.0), (0.0, 1.0)]).rounds == 1


@given(st.lists(st.integers(1, 10**6), unique=True, max_size=40), st.integers(0, 10**6))
def test_the_search_finds_the_largest_rate_below_the_limit(rates, limit):
    rates = sorted(rates)
    asked = []

    def held(rate):
        asked.append(rate)
        return rate <= limit

    assert largest_held(rates, held) == max((rate for rate in rates if rate <= limit), default=None)
    assert len(asked) == len(set(asked)) <= 6


def test_rates_rise_by_the_factor_up_to_the_last():
    assert rising(100, 250, 1.5) == [100, 150, 225]


# --- the record ---------------------------------------------------------------------------------------------


def test_the_headline_is_the_upper_end_of_ours_by_theirs():
    rows = make_rounds(OURS, 2.0, 2.2, 1.8, 2.1) + make_rounds("vllm-router", 1.0, 1.0, 1.0, 1.0)
    reported = summary(Measured(rows))["vs_vllm_router"]
    assert (
        reported["cpu_per_request_lower"] < reported["cpu_per_request_median"] < reported["cpu_per_request"]
    )
    assert reported["cpu_per_request_median"] == pytest.approx(2.05, abs=0.01)
    assert "cpu_per_chunk" not in reported


def test_the_control_compares_our_second_start_with_the_first():
    rows = make_rounds(OURS, 1.0, 1.0) + make_rounds(AGAIN, 1.1, 1.1)
    assert summary(Measured(rows))["aa_control"]["cpu_per_request_median"] == pytest.approx(1.1)


def test_a_row_with_failed_requests_is_counted_and_not_used():
    rows = make_rounds(OURS, 2.0, 2.0) + make_rounds("nginx", 1.0, 1.0)
    rows[0] = replace(rows[0], cpu_s=0.01, errors=7)
    result = summary(Measured(rows))
    assert result["vs_nginx"]["cpu_per_request_median"] == pytest.approx(2.0)
    assert result["arms"][OURS]["errors"] == 7


def test_costs_of_chunks_come_from_streams_and_those_of_requests_from_plain_replies():
    rows = [make_row(arm, "chunk", chunks=50_000) for arm in (OURS, "nginx")]
    assert ratios(rows, OURS, "nginx") == {
        "cpu_per_chunk": None,
        "cpu_per_chunk_median": 1.0,
        "cpu_per_chunk_lower": None,
    }


def test_added_ttft_is_told_against_the_same_round_without_a_gateway():
    rows = [make_row(OURS, "ttft", ttft_p50_us=each) for each in (300, 500, 350)]
    rows += [make_row(DIRECT, "ttft", ttft_p50_us=each) for each in (100, 290, 100)]
    result = summary(Measured(rows))
    assert result["added_ttft_ms"] == pytest.approx(0.21)
    assert DIRECT not in result["arms"]


def test_a_repeat_in_which_no_rate_held_counts_as_none():
    result = summary(Measured([], held_rates={OURS: [None, 4000, None]}))
    assert result["max_chunks_per_s"] == 0


# --- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("through", "held"),
    [
        ({"chunks_per_s": 9900.0, "travel_p99_us": 10_900}, True),
        ({"chunks_per_s": 9900.0, "travel_p99_us": 11_000}, False),
        ({"chunks_per_s": 9000.0, "travel_p99_us": 2000}, False),
        ({"chunks_per_s": 9900.0, "travel_p99_us": 2000, "errors": 1}, False),
        ({"chunks_per_s": 9900.0}, False),
    ],
)
def test_a_rate_holds_if_all_chunks_come_in_time_and_nothing_fails(through, held):
    without = make_row(DIRECT, "max_chunks", travel_p99_us=1000)
    assert arrives_on_time(make_row(load="max_chunks", **through), without, rate=10_000) is held


@given(st.integers(50, 100_000))
def test_streams_offer_the_rate_together(rate):
    load = rate_load(rate, seconds=1.0)
    assert load.connections * 1e6 / load.interval_us == pytest.approx(rate, abs=25)
    assert load.ramp_us * load.connections <= load.interval_us


def test_a_plan_can_be_narrowed_to_some_loads():
    plan = full_plan(3.0, 5000).only({"chunk", "max_chunks"})
    assert [load.name for load in plan.loads] == ["chunk"]
    assert plan.memory is None
    assert plan.rates
    assert quick_plan().names <= full_plan(3.0, 5000).names


# --- tools --------------------------------------------------------------------------------------------------


def test_ports_are_exchanged_where_they_stand_as_whole_numbers():
    text = "http://127.0.0.1:9000 listen 8201; worker_connections 82010; keepalive 19000"
    exchanged = "http://127.0.0.1:41 listen 42; worker_connections 82010; keepalive 19000"
    assert with_ports(text, {9000: 41, 8201: 42}) == exchanged


def test_the_bench_is_found_beside_the_repository_that_this_one_was_cloned_from(tmp_path):
    origin, clone = tmp_path / "here" / "origin", tmp_path / "elsewhere" / "clone"
    bench = origin.parent / "shared" / "gateway-bench"
    bench.mkdir(parents=True)
    for program in ("fakeup.c", "sseload.c"):
        (bench / program).touch()
    for command in (["init", "-q", str(origin)], ["clone", "-q", str(origin), str(clone)]):
        subprocess.run(["git", *command], check=True, capture_output=True)
    assert find_bench(None, clone) == bench
    assert find_bench(None, origin) == bench


def test_a_folder_without_the_bench_is_rejected_with_what_to_do(tmp_path):
    with pytest.raises(CannotMeasure, match="--bench-folder"):
        find_bench(tmp_path)


def run_script(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_the_bench_the_record_says_that_nothing_was_measured(tmp_path):
    assert str(tmp_path) in run_script("--quick", "--bench-folder", str(tmp_path))["skipped"]


def the_bench():
    try:
        return find_bench(None)
    except CannotMeasure as reason:
        pytest.skip(str(reason))


def test_a_peer_that_is_not_installed_is_named_with_how_to_install_it(tmp_path):
    tools = Tools(the_bench(), tmp_path, tmp_path / "venvs")
    with pytest.raises(PeerMissing, match="pip install vllm-router=="):
        tools.peer("vllm-router")


def test_a_short_run_measures_both_starts_of_our_gateway_with_everything_on(tmp_path):
    the_bench()
    reported = run_script(
        "--quick", "--only", "request_1kb,ttft", "--peers", "litellm", "--venvs", str(tmp_path)
    )
    assert reported["arms"].keys() == {OURS, AGAIN}
    assert reported["arms"][OURS]["errors"] == 0
    assert reported["arms"][OURS]["cpu_us_per_request"] > 0
    assert reported["aa_control"]["cpu_per_request_median"] > 0
    assert "pip install" in reported["missing_peers"]["litellm"]
    on = reported["ours_has_on"]
    assert on.pop("requests_in_metrics") > 0
    assert on == {"timelines": True, "rejects_without_key": True, "health_checks": True}

"""What was around an engine is put together from its counters, its gauges, its steps and its host."""

from dataclasses import replace

import pytest

from phasewise.clients.processes import CpuSource, CpuUse
from phasewise.core.engine_metrics import LoadReading, delta
from phasewise.core.steps import logs_by_rank
from phasewise.diagnosis.analysis.engine_load import Drafts
from phasewise.diagnosis.observed.observation import EngineSeen, HostCpu, WatchedEngine
from phasewise.diagnosis.observed.surroundings import setup_of, surroundings_of
from phasewise.engines.vllm import parse_metrics
from tests.builders import EPOCH_S, make_attempt, make_step, make_timeline

WINDOW = (EPOCH_S, EPOCH_S + 10.0)
STARTED_S = EPOCH_S - 60.0
USE = CpuUse(1.0, 0.4, 0.5, 0.3, CpuSource.RUN_QUEUE, 0.8)


def page(cpu_s, drafts=None, started_s=STARTED_S, blocks=100):
    lines = [
        "# TYPE process_cpu_seconds_total counter",
        f"process_cpu_seconds_total {cpu_s}",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started_s}",
        "# TYPE vllm:cache_config_info gauge",
        'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",'
        f'num_gpu_blocks="{blocks}"}} 1.0',
    ]
    for name, count in zip(("drafts", "draft_tokens", "accepted_tokens"), drafts or (), strict=False):
        lines += [
            f"# TYPE vllm:spec_decode_num_{name}_total counter",
            f"vllm:spec_decode_num_{name}_total {count}",
        ]
    return "\n".join(lines) + "\n"


def make_seen(before=None, after=None, loads=(), **engine):
    """An engine that served these two pages; without them it never answered."""
    metrics = None
    if before is not None:
        metrics = delta(parse_metrics(before, WINDOW[0]), parse_metrics(after, WINDOW[1]))
    watched = WatchedEngine(**{"name": "w0", "url": "http://127.0.0.1:1", "steps_url": None, **engine})
    return EngineSeen(watched, metrics, (), details=True, dropped=0, loads=tuple(loads), round_trip_s=0.002)


def found(seen, host=None, timelines=(), steps=()):
    return surroundings_of(seen, host, timelines, logs_by_rank(steps), WINDOW)


def test_an_engine_that_never_answered_has_a_name_and_what_the_gateway_knows_of_it():
    other = make_timeline(attempts=(make_attempt(worker="w1"),))
    engine = found(make_seen(), timelines=[make_timeline(), other])
    assert (engine.name, engine.requests, engine.kv_tokens, engine.engine_load) == ("w0", 1, None, None)
    assert engine.cpu_wait_share is None


def test_counters_report_of_the_cache_the_age_and_the_drafts():
    engine = found(make_seen(page(1.0, (5, 10, 5)), page(3.0, (25, 70, 20))))
    assert (engine.kv_tokens, engine.block_tokens, engine.prefix_cache_on) == (1600, 16, False)
    assert engine.age_s == pytest.approx(60.0)
    assert engine.drafts == Drafts(20.0, 60.0, 15.0)
    assert engine.round_trip_s == 0.002


def test_an_engine_that_does_not_speculate_has_no_drafts():
    assert found(make_seen(page(1.0), page(3.0))).drafts is None
    assert found(make_seen(page(1.0, (5, 10, 5)), page(3.0, (5, 10, 5)))).drafts is None


def test_a_remote_front_end_reports_how_busy_it_is_by_itself():
    assert found(make_seen(page(1.0), page(3.0))).front_end_cores == pytest.approx(0.2)


def test_a_process_that_serves_and_computes_at_once_has_no_front_end_to_speak_of():
    host = HostCpu(CpuUse(1.0, None, 0.0, 0.0, CpuSource.RUN_QUEUE, 0.5), STARTED_S)
    assert found(make_seen(page(1.0), page(9.0)), host).front_end_cores is None


def test_the_process_on_a_port_is_not_the_engine_if_they_began_at_different_times():
    seen = make_seen(page(1.0), page(3.0))
    assert found(seen, HostCpu(USE, STARTED_S + 1.0)).cpu_wait_share is not None
    tunnel = found(seen, HostCpu(USE, STARTED_S - 1000.0))
    assert (tunnel.cpu_wait_share, tunnel.host_busy_share, tunnel.age_s) == (None, None, 60.0)


@pytest.mark.parametrize(("working", "share"), [(10, 0.3), (6, 0.5), (2, 0.5)])
def test_what_waiting_cost_is_reported_the_time_at_work(working, share):
    """It stood still for 0.3 of the window, and its threads waited half of what they wanted."""
    loads = [LoadReading(EPOCH_S + tick, int(tick < working), 0, 0.1) for tick in range(10)]
    engine = found(make_seen(page(1.0), page(3.0), loads), HostCpu(USE, None))
    assert engine.cpu_wait_share == pytest.approx(share)
    assert engine.cpu_source == "run-queue waits of its threads"


def test_steps_report_how_full_it_was_before_gauges_do():
    steps = [make_step(seq, seq * 0.5, running=4, waiting=seq % 2) for seq in range(1, 20)]
    loads = [LoadReading(EPOCH_S, 50, 50, 0.9)]
    engine = found(make_seen(page(1.0), page(3.0), loads), steps=steps)
    assert engine.engine_load.running_max == 4
    assert engine.steps.steps == 19
    assert found(make_seen(page(1.0), page(3.0), loads)).engine_load.running_max == 50


def test_of_several_ranks_the_one_with_the_longest_queue_is_shown():
    ranks = [make_step(seq, seq * 0.5, waiting=5 * (seq % 2), engine_index=seq % 2) for seq in range(1, 20)]
    assert found(make_seen(page(1.0), page(3.0)), steps=ranks).engine_load.waiting_max == 5


def test_a_request_fits_once_what_is_computed_of_its_prompt_fits():
    """1,600 tokens, 80% used: space for the 100 tokens that are not cached, whatever comes out later."""
    steps = [replace(make_step(seq, seq * 0.5, running=8, waiting=2), kv_usage=0.8) for seq in range(1, 20)]
    asked = [make_timeline(prompt_tokens=400, cached_tokens=300, output_tokens=900)]
    engine_load = found(make_seen(page(1.0), page(3.0)), timelines=asked, steps=steps).engine_load
    assert (engine_load.kv_full_share, engine_load.capped_share) == (0.0, pytest.approx(1.0))


def test_ranks_that_compute_at_the_same_time_are_busy_together():
    ranks = [make_step(seq, seq // 2, running=1, engine_index=seq % 2) for seq in range(2, 20)]
    engine = found(make_seen(page(1.0), page(3.0), model="m"), steps=ranks)
    assert engine.ranks_busy_share == pytest.approx(2 * engine.steps.busy_share)
    assert engine.model == "m"


def test_engines_are_alike_if_only_the_measured_size_of_their_caches_differs():
    alike = [make_seen(page(1.0), page(2.0, blocks=blocks), model="m") for blocks in (100, 101)]
    assert setup_of(alike[0]) == setup_of(alike[1])
    assert setup_of(alike[0]) != setup_of(make_seen(page(1.0), page(2.0), model="another"))

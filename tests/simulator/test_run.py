"""Loads in virtual time, and the same loads over HTTP."""

import asyncio
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench_power import PhaseScaled
from phasewise.clients.http_client import HttpClient
from phasewise.clients.step_feed import StepFeed
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import running_engines
from phasewise.fake_engine.jitter import Jitter
from phasewise.simulator.engine import VirtualRequest
from phasewise.simulator.run import run_closed, run_virtually
from tests.contract.engine_calls import COMPLETIONS, completion_body, post_json
from tests.fake_engine.engine_builders import make_engine, make_request

TWENTY_MS_STEPS = StepCost(
    floor_s=0.02,
    knee_tokens=64,
    beyond_knee_s_per_token=50e-6,
    attention_s_per_token_pair=0.0,
    kv_read_s_per_token=0.0,
    per_request_s=0.0,
)


def make_load(count, rate_per_s, output_tokens, seed, prompt_tokens=(100, 400)):
    """Poisson arrivals of prompts that have nothing in common; lengths are from and to."""
    rng = Random(seed)  # noqa: S311 - no secret
    arrived_s, load = 0.0, []
    for number in range(count):
        ids = tuple(rng.randrange(1, 60_000) for _ in range(rng.randint(*prompt_tokens)))
        output = rng.randint(*output_tokens)
        load.append(VirtualRequest(f"r{number}", ids, output, arrived_s, ignore_eos=True))
        arrived_s += rng.expovariate(rate_per_s)
    return load


# --- the order of events ----------------------------------------------------------------------------------


def test_an_idle_engine_begins_when_a_request_comes():
    (early, late) = run_virtually(
        make_engine(), [make_request("a", arrived_s=2.5, max_tokens=2), make_request("b", arrived_s=7.25)]
    )
    assert early.token_times_s == (3.5, 4.5)
    assert (early.ttft_s, early.tpot_s, early.e2e_s, early.gaps_s) == (1.0, 1.0, 2.0, (1.0,))
    assert late.token_times_s == (8.25, 9.25, 10.25)


def test_who_comes_during_a_step_is_taken_in_at_its_end():
    first, second = run_virtually(
        make_engine(), [make_request("a", arrived_s=0.0), make_request("b", prompt=5, arrived_s=0.25)]
    )
    assert first.token_times_s == (1.0, 2.0, 3.0)
    assert (second.ttft_s, second.token_times_s) == (1.75, (2.0, 3.0, 4.0))


def test_who_comes_as_a_step_ends_finds_the_next_one_begun():
    _, second = run_virtually(
        make_engine(), [make_request("a", arrived_s=0.0), make_request("b", prompt=5, arrived_s=1.0)]
    )
    assert second.ttft_s == 2.0


def test_outcomes_are_in_the_order_of_the_requests():
    requests = [make_request("late", arrived_s=9.0), make_request("early", arrived_s=-3.0)]
    outcomes = run_virtually(make_engine(), requests)
    assert [(one.request_id, one.arrived_s) for one in outcomes] == [("late", 9.0), ("early", -3.0)]
    assert [one.ttft_s for one in outcomes] == [1.0, 1.0]


def test_a_single_token_has_no_time_per_token():
    (only,) = run_virtually(make_engine(), [make_request(max_tokens=1)])
    assert (only.tpot_s, only.gaps_s, only.e2e_s) == (None, (), 1.0)


def test_a_warm_engine_still_has_its_prefixes():
    engine = make_engine(cost=lambda work: float(work.prompt_tokens + work.decode_tokens))
    cold, warm = (run_virtually(engine, [make_request(name, prompt=10)])[0] for name in "ab")
    assert (cold.ttft_s, warm.ttft_s) == (10.0, 2.0)


def test_in_a_closed_loop_the_next_comes_when_one_ends():
    requests = [make_request(f"r{length}", prompt=length, max_tokens=2) for length in (4, 5, 6)]
    outcomes = run_closed(make_engine(), requests, 1, turnaround_s=0.5)
    assert [one.arrived_s for one in outcomes] == [0.0, 2.5, 5.0]
    assert [one.ttft_s for one in outcomes] == [1.0, 1.0, 1.0]


def test_in_a_closed_loop_a_busy_engine_has_begun_its_next_step_before_the_next_comes():
    requests = [make_request("long", 4, 9), make_request("short", 5, 2), make_request("next", 6, 2)]
    outcomes = run_closed(make_engine(), requests, 2)
    assert (outcomes[2].arrived_s, outcomes[2].token_times_s) == (2.0, (4.0, 5.0))


@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=12),
    concurrency=st.integers(1, 6),
)
def test_a_closed_loop_never_has_more_under_way_than_clients(lengths, concurrency):
    requests = [make_request(f"r{n}", prompt, output) for n, (prompt, output) in enumerate(lengths)]
    outcomes = run_closed(make_engine(), requests, concurrency)
    assert [len(one.token_times_s) for one in outcomes] == [output for _, output in lengths]
    for one in outcomes:
        under_way = [
            other for other in outcomes if other.arrived_s <= one.arrived_s < other.token_times_s[-1]
        ]
        assert len(under_way) <= concurrency


def test_a_run_rejects_what_it_could_not_account_for():
    busy = make_engine()
    busy.add(make_request("left over"), now=0.0)
    with pytest.raises(ValueError, match="idle"):
        run_virtually(busy, [])
    with pytest.raises(ValueError, match="request r is expected already"):
        run_virtually(make_engine(), [make_request("r"), make_request("r", arrived_s=50.0)])
    with pytest.raises(ValueError, match="at least one client"):
        run_closed(make_engine(), [], 0)


# --- what a configuration means in virtual time -----------------------------------------------------------


def test_a_slower_phase_shows_in_its_own_metric_of_a_request_alone():
    def alone(cost):
        load = make_load(1, 1.0, (16, 16), seed=1)
        return run_virtually(FakeEngineConfig(cost=cost).virtual_engine(), load)[0]

    base = alone(TWENTY_MS_STEPS)
    slow_start, slow_stream = (
        alone(PhaseScaled(TWENTY_MS_STEPS, **slower)) for slower in ({"prefill": 1.1}, {"decode": 1.1})
    )
    assert slow_start.ttft_s == pytest.approx(1.1 * base.ttft_s)
    assert slow_start.tpot_s == pytest.approx(base.tpot_s)
    assert slow_stream.ttft_s == pytest.approx(base.ttft_s)
    assert slow_stream.tpot_s == pytest.approx(1.1 * base.tpot_s)


def test_every_virtual_engine_of_a_configuration_has_the_same_noise_and_slowness():
    config = FakeEngineConfig(
        cost=TWENTY_MS_STEPS, jitter=Jitter(0.1, seed=5), faults=(Fault(FaultKind.SLOW, factor=2.0),)
    )
    load = make_load(20, 15.0, (4, 4), seed=2)
    first, again = (run_virtually(config.virtual_engine(), load) for _ in range(2))
    assert first == again
    gaps_s = [gap_s for one in first for gap_s in one.gaps_s]
    assert len(set(gaps_s)) > 20
    assert median(gaps_s) == pytest.approx(0.04, rel=0.2)


# --- the same load over HTTP ------------------------------------------------------------------------------


async def steps_over_http(config, send_all):
    """What the engine itself recorded: no busy client can blur it."""
    async with running_engines(1, config) as (engine,):
        client, feed = HttpClient(engine.base_url), StepFeed(engine.steps_url)

        async def send(request):
            body = completion_body(engine.model, list(request.prompt_ids), max_tokens=request.max_tokens)
            await post_json(client, COMPLETIONS, body)

        await send_all(send)
        batch = await feed.poll()
        client.close()
        feed.close()
    return [step for step in batch.steps if step.prompt_tokens is not None]


def finished_in(steps):
    return [finished for step in steps for finished in step.finished]


async def test_an_open_loop_over_http_takes_as_long_as_the_arithmetic_says():
    config = FakeEngineConfig(cost=TWENTY_MS_STEPS, jitter=Jitter(0.1, seed=3))
    load = make_load(60, 15.0, (8, 8), seed=3)

    async def send_all(send):
        async def send_in_time(request):
            await asyncio.sleep(request.arrived_s)
            await send(request)

        await asyncio.gather(*map(send_in_time, load))

    finished = finished_in(await steps_over_http(config, send_all))
    expected = run_virtually(config.virtual_engine(), load)
    ttft_s = median(one.e2e_s - one.decode_s for one in finished)
    tpot_s = median(one.decode_s / (one.output_tokens - 1) for one in finished)
    assert len(finished) == 60
    assert ttft_s == pytest.approx(median(one.ttft_s for one in expected), rel=0.1)
    assert tpot_s == pytest.approx(median(one.tpot_s for one in expected), rel=0.1)


async def test_a_closed_loop_over_http_takes_as_many_steps_as_the_arithmetic_says():
    config = FakeEngineConfig(cost=lambda work: 0.04)
    # Answers of different lengths, so that requests come one by one to an engine that is busy. However late
    # they come within a step, they belong to the next.
    load = make_load(24, 1.0, (2, 6), seed=4)

    async def send_all(send):
        queue = iter(load)

        async def be_a_client():
            for request in queue:
                await send(request)

        await asyncio.gather(*(be_a_client() for _ in range(4)))

    steps = await steps_over_http(config, send_all)
    expected = run_closed(config.virtual_engine(), load, 4, turnaround_s=0.001)
    assert len(finished_in(steps)) == 24
    ends_s = {time_s for one in expected for time_s in one.token_times_s}
    assert len(steps) == pytest.approx(len(ends_s), rel=0.1)

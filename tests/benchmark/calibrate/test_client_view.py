from __future__ import annotations

from random import Random

import numpy as np
import pytest

from phasewise.benchmark.calibrate.client_view import client_observations
from phasewise.benchmark.calibrate.scenes import Scene, SceneLimits, plan_scenes
from phasewise.costs.fit.observation import latest_of_each_regime
from phasewise.costs.fit.step import StepCost, StepKind, decoding, prefilling
from phasewise.costs.fit.step_fit import fit_steps
from phasewise.fake_engine.jitter import Jitter, JitteredCost
from phasewise.simulator.engine import EngineShape
from tests.benchmark.calibrate.virtual_client import VirtualClient

COST = StepCost(
    floor_s=20e-3,
    knee_tokens=128,
    beyond_knee_s_per_token=0.2e-3,
    attention_s_per_token_pair=60e-9,
    kv_read_s_per_token=2e-6,
    per_request_s=0.4e-3,
)
SMALL_CHUNKS = EngineShape(max_num_batched_tokens=256)


def of_kind(observations, kind):
    return [observation for observation in observations if observation.kind is kind]


def test_a_prompt_alone_shows_its_step_and_the_front_end():
    client = VirtualClient(COST)
    (seen,) = client_observations([client.play(Scene(arrivals=(300,)))])
    assert seen.works == (prefilling(300),)
    assert seen.through_front_end
    assert seen.seconds == pytest.approx(COST(prefilling(300)) + client.front_end_s)


def test_the_gaps_of_streams_are_steps_with_the_work_they_had():
    client = VirtualClient(COST)
    seen = client_observations([client.play(Scene(4, 64))])
    assert [observation.works for observation in seen] == [
        (decoding([64 + written] * 4),) for written in range(1, Scene(4, 64).stream_tokens)
    ]
    assert [observation.works[0] for observation in seen] == client.works[1:]
    assert [observation.seconds for observation in seen] == pytest.approx(list(map(COST, client.works[1:])))
    assert not any(observation.through_front_end for observation in seen)


def test_a_prompt_among_streams_is_seen_with_the_step_it_waited_for():
    client = VirtualClient(COST)
    seen = client_observations([client.play(Scene(2, 64, (400,)))])
    (mixed,) = of_kind(seen, StepKind.MIXED)
    waited, carried = mixed.works
    assert waited.prompt_tokens == 0
    assert (carried.prompt_tokens, carried.decode_tokens, carried.requests) == (400, 2, 3)
    assert carried in client.works
    assert mixed.seconds == pytest.approx(COST(waited) + COST(carried))


def test_every_step_of_the_streams_is_counted_once():
    client = VirtualClient(COST)
    seen = client_observations([client.play(Scene(2, 64, (400, 30)))])
    assert [work for observation in seen for work in observation.works if not work.prompt_tokens]
    counted = sum(len(observation.works) for observation in seen)
    assert counted == sum(1 for work in client.works if work.decode_tokens)


def test_a_prompt_that_the_engine_cuts_into_chunks_is_recognised():
    client = VirtualClient(COST, SMALL_CHUNKS)
    seen = client_observations([client.play(Scene(1, 64, (900,)))])
    (mixed,) = of_kind(seen, StepKind.MIXED)
    assert [work.prompt_tokens for work in mixed.works if work.prompt_tokens] == [225] * 4
    true_pairs = sum(work.attention_token_pairs for work in client.works if work.decode_tokens)
    assert sum(work.attention_token_pairs for work in mixed.works) == pytest.approx(true_pairs)
    assert sum(map(COST, mixed.works)) == pytest.approx(mixed.seconds, rel=0.02)


def test_prompts_alone_are_cut_up_as_those_among_streams_were():
    client = VirtualClient(COST, SMALL_CHUNKS)
    seen = client_observations([client.play(Scene(1, 64, (900,))), client.play(Scene(arrivals=(700,)))])
    alone = of_kind(seen, StepKind.PREFILL)[-1]
    assert [work.prompt_tokens for work in alone.works] == [175] * 4
    assert sum(map(COST, alone.works)) + client.front_end_s == pytest.approx(alone.seconds, rel=0.1)


def test_a_scene_with_a_stream_that_lost_tokens_is_left_out():
    """A stream whose chunks held several tokens, or that was cut off, shows no steps."""
    whole, cut = (VirtualClient(COST).play(Scene(2, 64, (100,))) for _ in range(2))
    del cut.streams[1].times_s[3]
    assert client_observations([cut]) == ()
    assert client_observations([whole, cut]) == client_observations([whole])


def test_a_scene_with_a_prompt_that_got_no_token_is_left_out():
    """When it was computed is unknown, so any of the streams' steps may have carried it."""
    alone = VirtualClient(COST).play(Scene(arrivals=(100,)))
    among = VirtualClient(COST).play(Scene(2, 64, (100,)))
    alone.arrivals[0].times_s.clear()
    among.arrivals[0].times_s.clear()
    assert client_observations([alone, among]) == ()


def test_a_step_slowed_by_a_neighbour_is_not_taken_for_a_chunk_of_every_prompt():
    client = VirtualClient(COST)
    played = [
        client.play(scene) for scene in (Scene(2, 64, (600,)), Scene(2, 64, (16,)), Scene(arrivals=(1000,)))
    ]
    held_up = played[1]
    at_s = held_up.arrivals[0].sent_s
    for heard in (*held_up.streams, *held_up.arrivals):
        heard.times_s = [time_s + 0.1 if time_s > at_s else time_s for time_s in heard.times_s]
    (alone,) = of_kind(client_observations(played), StepKind.PREFILL)
    assert alone.works == (prefilling(1000),)


def test_streams_that_never_wrote_together_show_nothing():
    """The engine had a slot for one only, so the second began when the first had ended."""
    client = VirtualClient(COST, EngineShape(max_num_seqs=1))
    assert client_observations([client.play(Scene(2, 64))]) == ()


def test_nothing_played_shows_nothing():
    assert client_observations([]) == ()


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_a_known_cost_is_found_again_from_what_clients_saw(spread):
    cost = JitteredCost(COST, Jitter(spread), Random(3))  # noqa: S311 - noise
    client = VirtualClient(cost, way_in_s=0.006, way_back_s=0.002)
    scenes = plan_scenes(SceneLimits(1_500.0, 60.0, 8192, 46_592))
    played = [client.play(scene) for _ in range(3) for scene in scenes]
    fit = fit_steps(latest_of_each_regime(client_observations(played)), np.random.default_rng(0))
    assert fit.cost.floor_s == pytest.approx(COST.floor_s, rel=0.1)
    assert fit.cost.beyond_knee_s_per_token == pytest.approx(COST.beyond_knee_s_per_token, rel=0.2)
    assert fit.fitted.front_end_s == pytest.approx(client.front_end_s, rel=0.35)
    for work in (prefilling(64), prefilling(700), decoding([200]), decoding([60] * 12)):
        assert fit.cost(work) == pytest.approx(COST(work), rel=0.08)

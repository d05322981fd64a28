"""The engine that counts: equal to the engine that has tokens, and a stretch equal to its single steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.costs.fit.step import StepCost
from phasewise.simulator.counting_engine import NO_DRAFTS, CountingEngine, DraftedTokens
from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest
from phasewise.simulator.requests import CountedRequest

COST = StepCost(0.011, 24, 0.0013, 0.7e-5, 0.37e-4, 0.0009, 0.0002)
SHAPE = EngineShape(
    max_model_len=96, max_num_seqs=6, max_num_batched_tokens=24, block_size=8, total_blocks=26
)


@dataclass(frozen=True)
class Ask:
    at_s: float
    shared: int
    own: int
    outputs: int


asks = st.builds(
    Ask,
    st.floats(0.0, 3.0).map(lambda it: round(it, 3)),
    st.integers(0, 2),
    st.integers(1, 40),
    st.integers(1, 40),
)
"""Prompts behind one of three beginnings; on a small engine that has to preempt."""

BEGINNINGS = {0: 0, 1: 16, 2: 33}


def ids_of(number, ask):
    return tuple(range(BEGINNINGS[ask.shared])) + tuple(1000 * (number + 1) + i for i in range(ask.own))


def keys_of(number, ask, block_size):
    """The same prefixes as in tokens: blocks of the beginning are shared, all others are its own."""
    shared = BEGINNINGS[ask.shared] // block_size
    own = (BEGINNINGS[ask.shared] + ask.own + ask.outputs) // block_size - shared
    return [*range(shared), *(10_000 * (number + 1) + i for i in range(own))]


class Counted:
    """Drives an engine that counts, in virtual time."""

    def __init__(self, shape, cost, speculation=NO_DRAFTS):
        self.engine = CountingEngine(shape, cost, speculation)
        self.ends_s = inf
        self.now_s = 0.0
        self.steps_alone = False
        self.finished = []

    def begin(self, now_s):
        ends_s = self.engine.begin(now_s)
        if ends_s is not None and self.steps_alone:
            ends_s = self.engine.cut(now_s) or ends_s
        self.ends_s = inf if ends_s is None else ends_s
        self.now_s = now_s

    def until(self, when_s):
        while self.ends_s <= when_s:
            end = self.engine.end()
            assert end.ended_s == self.ends_s
            self.engine.check_invariants()
            self.finished += end.finished
            self.begin(end.ended_s)

    def add(self, request, now_s):
        self.engine.add(request, now_s)
        if self.ends_s == inf:
            self.begin(now_s)
        else:
            self.ends_s = self.engine.cut(now_s) or self.ends_s


def counted(shape, cost, load, speculation=NO_DRAFTS, *, steps_alone=False):
    run = Counted(shape, cost, speculation)
    run.steps_alone = steps_alone
    requests = [
        CountedRequest(
            f"r{number}", len(ids_of(number, ask)), ask.outputs, keys_of(number, ask, shape.block_size)
        )
        for number, ask in enumerate(load)
    ]
    for request, ask in sorted(zip(requests, load, strict=True), key=lambda it: it[1].at_s):
        run.until(ask.at_s)
        run.add(request, ask.at_s)
    run.until(1e9)
    assert len(run.finished) == len(load)
    assert not run.engine.requests
    return run, requests


def in_tokens(shape, cost, load):
    """The same by the engine that has tokens, step by step."""
    engine = VirtualEngine(shape, cost)
    coming = sorted(enumerate(load), key=lambda it: it[1].at_s)
    times, finished, now_s, ends_s, report = {}, {}, 0.0, inf, None
    while coming or ends_s < inf:
        if coming and coming[0][1].at_s < ends_s:
            number, ask = coming.pop(0)
            now_s = ask.at_s
            request = VirtualRequest(f"r{number}", ids_of(number, ask), ask.outputs, now_s, ignore_eos=True)
            engine.add(request, now_s)
            times[f"r{number}"] = []
        else:
            now_s, ends_s = ends_s, inf
            for token in report.emitted:
                times[token.request_id].append(now_s)
                if token.finished is not None:
                    finished[token.request_id] = token.finished
        if ends_s == inf and (report := engine.step(now_s)) is not None:
            ends_s = report.step.ended_unix_s
    return times, finished


@settings(max_examples=300, deadline=None)
@given(st.lists(asks, min_size=1, max_size=14))
def test_it_does_what_the_engine_with_tokens_does(load):
    _, requests = counted(SHAPE, COST, load)
    times, finished = in_tokens(SHAPE, COST, load)
    for request in requests:
        reference = finished[request.name]
        assert list(request.token_times_s) == times[request.name]
        assert request.cached_tokens == reference.cached_tokens
        assert request.preemptions == reference.preemptions
        assert request.outputs == reference.output_tokens
        assert request.scheduled_s - request.queued_s == pytest.approx(reference.queue_s)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(asks, min_size=1, max_size=10),
    st.sampled_from([NO_DRAFTS, DraftedTokens(3, 1.5)]),
    st.booleans(),
)
def test_a_stretch_of_equal_steps_equals_the_single_steps(load, speculation, prefix_cache):
    shape = EngineShape(200, 8, 64, 16, 60, prefix_cache=prefix_cache)
    at_once, requests = counted(shape, COST, load, speculation)
    alone, same = counted(shape, COST, load, speculation, steps_alone=True)
    assert at_once.engine.steps == alone.engine.steps
    for one, other in zip(requests, same, strict=True):
        assert one.token_times_s == other.token_times_s
        assert (one.cached_tokens, one.preemptions) == (other.cached_tokens, other.preemptions)

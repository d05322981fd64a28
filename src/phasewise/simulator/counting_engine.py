"""Continuous batching by counting: how many tokens of which request each step has, without the tokens.

It schedules as `VirtualEngine` does, which is its reference, but takes a stretch of equal steps at once: as
long as all requests decode, steps differ in nothing but the length of what they read. Pure: a driver begins
a stretch, may cut it short when something arrives, and ends it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np

from phasewise.costs.fit.step import StepCost, StepSeconds, StepWork, chunk_pairs
from phasewise.simulator.blocks import CountedBlocks
from phasewise.simulator.requests import CountedRequest, EngineShape

SHORT_STRETCH = 12
"""Fewer steps than this are added up faster one by one than as an array."""
KEPT_STEPS = 1 << 15
"""When so many step times are stored, those that no running request needs are dropped."""


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """Drafted tokens in each step of a stream, and how many of them are accepted on average.

    Every stream gets the average in every step: chance is left out.
    """

    drafted: int
    accepted: float


@dataclass(slots=True)
class StretchEnd:
    """What a stretch brought: requests whose first token came, those that ended, KV that is to be fetched."""

    ended_s: float
    begun: list[CountedRequest]
    finished: list[CountedRequest]


@dataclass(slots=True)
class _Stretch:
    """Steps under way: their ends, and what is computed of prompts. Only a single step has prompts in it."""

    ends_s: Sequence[float]
    steps: int
    reading: list[CountedRequest]


NO_DRAFTS = DraftedTokens(0, 0.0)


class CountingEngine:
    """The scheduler and KV cache of one engine."""

    def __init__(self, shape: EngineShape, cost: StepSeconds, speculation: DraftedTokens = NO_DRAFTS) -> None:
        self.shape = shape
        self.steps = 0
        self.preempted = 0
        self.to_fetch: list[tuple[CountedRequest, int]] = []
        self._cost = cost
        self._speculation = speculation
        self._per_step = 1 + speculation.accepted if speculation.accepted else 1
        self.blocks = CountedBlocks(shape.total_blocks)
        self._waiting: deque[CountedRequest] = deque()
        self._running: dict[str, CountedRequest] = {}
        self._reading: dict[str, CountedRequest] = {}
        self._fetching: dict[str, CountedRequest] = {}
        self._landed: dict[str, CountedRequest] = {}
        self._kept: dict[str, CountedRequest] = {}
        self._decoding = 0
        self._context_tokens: float = 0
        self._next_order = 0
        # When each decoding request ends, and when it needs a block more: by step, then by age.
        self._ends: list[tuple[int, int, CountedRequest]] = []
        self._grows: list[tuple[int, int, CountedRequest]] = []
        self._stretch: _Stretch | None = None
        self._ended_s: array[float] = array("d")
        self._first_kept_step = 0

    # --- what its driver sees -----------------------------------------------------------------------------

    @property
    def requests(self) -> list[CountedRequest]:
        """All that have not ended."""
        return [*self._running.values(), *self._waiting, *self._fetching.values(), *self._landed.values()]

    def add(self, request: CountedRequest, now_s: float) -> None:
        """Queue a request; the next step considers it."""
        if not 0 < request.prompt_tokens < self.shape.max_model_len or request.output_tokens < 1:
            raise ValueError("a prompt must leave room for at least one token")
        request.queued_s = now_s
        request.output_tokens = min(request.output_tokens, self.shape.max_model_len - request.prompt_tokens)
        self._waiting.append(request)

    def land(self, request: CountedRequest) -> None:
        """The KV that a request fetches has arrived."""
        del self._fetching[request.name]
        request.fetches = False
        self._publish(request, request.length - 1)
        request.computed_tokens = request.length - 1
        self._landed[request.name] = request

    def release_kept(self, name: str) -> bool:
        """Another engine has fetched the KV that was kept for it, or never will; False if none was kept."""
        request = self._kept.pop(name, None)
        if request is None:
            return False
        self.blocks.release(request.blocks)
        return True

    def abort(self, request: CountedRequest) -> None:
        """End a request between two steps."""
        if self._running.pop(request.name, None) is not None:
            self._reading.pop(request.name, None)
            if request.since_step >= 0:
                self._stop_decoding(request)
        elif self._landed.pop(request.name, None) is None and self._fetching.pop(request.name, None) is None:
            self._waiting.remove(request)
        self.blocks.release(request.blocks)
        request.blocks = []

    # --- stretches ----------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> float | None:
        """Begin a step, or a stretch of equal ones; returns when it ends, None if there is nothing to do."""
        preempted = self.preempted
        self._admit_landed(now_s)
        self._grow_streams(self.steps)
        budget = self.shape.max_num_batched_tokens - self._decoding * (1 + self._speculation.drafted)
        batch: list[CountedRequest] = []
        # Decodes first: a stream never waits for a prompt.
        for request in sorted(self._reading.values(), key=lambda request: not request.only_decodes):
            if request.name not in self._reading:
                continue  # just preempted, for an older one
            tokens = min(request.length - request.computed_tokens, budget)
            if tokens > 0 and self._make_room(request, tokens, batch):
                request.chunk_tokens = tokens
                batch.append(request)
                budget = self._budget(batch)
        if self._waiting and self.preempted == preempted:
            self._admit(batch, budget, now_s)
        if not batch and not self._decoding:
            return None
        steps = 1 if batch or self.preempted != preempted else self._equal_steps()
        ends_s = [now_s + self._cost(self._work(batch))] if steps == 1 else self._step_ends(now_s, steps)
        self._stretch = _Stretch(ends_s, steps, batch)
        return ends_s[-1]

    def cut(self, now_s: float) -> float | None:
        """Something arrived: let the stretch end with the step under way; returns when it then ends.

        None: it ends as planned, or what waits could not be scheduled earlier in any case.
        """
        stretch = self._stretch
        if stretch is None or stretch.steps == 1 or len(self._running) >= self.shape.max_num_seqs:
            return None
        steps = bisect_right(stretch.ends_s, now_s, 0, stretch.steps) + 1
        if steps >= stretch.steps:
            return None
        stretch.steps = steps
        return stretch.ends_s[steps - 1]

    def end(self) -> StretchEnd:
        """The stretch has ended."""
        stretch = self._stretch
        if stretch is None:
            raise ValueError("no stretch is under way")
        self._stretch = None
        steps = stretch.steps
        ended_s = stretch.ends_s[steps - 1]
        self._ended_s.extend(stretch.ends_s[:steps])
        self.steps += steps
        self._context_tokens += steps * self._decoding * self._per_step
        # Blocks for the later steps of a stretch: enough are free for all of them.
        self._grow_streams(self.steps - 1)
        finished = self._finish_streams()
        begun = []
        for request in stretch.reading:
            request.computed_tokens += request.chunk_tokens
            if request.computed_tokens < request.length:
                continue
            del self._reading[request.name]
            if request.first_token_s is None:
                begun.append(request)
                request.first_token_s = ended_s
            request.outputs += 1
            if request.outputs >= request.output_tokens:
                request.token_times_s.append(ended_s)
                self._leave(request)
                finished.append(request)
            else:
                self._start_decoding(request)
        if len(self._ended_s) > KEPT_STEPS:
            self._drop_times()
        return StretchEnd(ended_s, begun, finished)

    def stop(self, now_s: float) -> None:
        """Stop for good: what streams have written until now stays written, the step under way is lost."""
        if self._stretch is not None:
            whole = bisect_right(self._stretch.ends_s, now_s, 0, self._stretch.steps)
            self._ended_s.extend(self._stretch.ends_s[:whole])
            self.steps += whole
        for request in self._running.values():
            if request.since_step >= 0:
                self._stop_decoding(request)

    def _equal_steps(self) -> int:
        """How many steps are like the next: until a stream ends, or blocks may run out."""
        while self._ends[0][2].since_step < 0 or self._ends[0][2].order != self._ends[0][1]:
            heappop(self._ends)  # it was preempted since
        steps = self._ends[0][0] - self.steps
        most_grown = self._decoding * (ceil(steps * self._per_step / self.shape.block_size) + 1)
        if most_grown > self.blocks.free_blocks and self._grows:
            steps = min(steps, self._grows[0][0] - self.steps)
        return max(1, steps)

    def _step_ends(self, now_s: float, steps: int) -> Sequence[float]:
        cost, streams = self._cost, self._decoding
        tokens, grown = streams * (1 + self._speculation.drafted), streams * self._per_step
        if steps >= SHORT_STRETCH and isinstance(cost, StepCost):
            lengths = np.floor(self._context_tokens + grown * np.arange(steps))
            # The same operations in the same order as in a single step, so that times are equal to the bit.
            durations_s = cost(StepWork(0, tokens, streams, 0, lengths))
            ends = array("d")
            ends.frombytes(np.cumsum(np.concatenate(([now_s], durations_s)))[1:].tobytes())
            return ends
        ends_s = []
        for step in range(steps):
            now_s += cost(StepWork(0, tokens, streams, 0, int(self._context_tokens + grown * step)))
            ends_s.append(now_s)
        return ends_s

    def _work(self, batch: Sequence[CountedRequest]) -> StepWork:
        prompt_tokens = pairs = 0
        decode_tokens = self._decoding * (1 + self._speculation.drafted)
        context_tokens = int(self._context_tokens)
        for request in batch:
            if request.only_decodes:
                decode_tokens += 1
                context_tokens += request.length
            else:
                prompt_tokens += request.chunk_tokens
                pairs += chunk_pairs(request.chunk_tokens, request.computed_tokens)
        return StepWork(prompt_tokens, decode_tokens, self._decoding + len(batch), pairs, context_tokens)

    def _budget(self, batch: Sequence[CountedRequest]) -> int:
        used = self._decoding * (1 + self._speculation.drafted) + sum(
            request.chunk_tokens for request in batch
        )
        return self.shape.max_num_batched_tokens - used

    # --- slots and blocks ---------------------------------------------------------------------------------

    def _admit(self, batch: list[CountedRequest], budget: int, now_s: float) -> None:
        """Admit waiting requests, oldest first, while there are token budget, slots and blocks."""
        block_size, slots = self.shape.block_size, self.shape.max_num_seqs
        while self._waiting and budget > 0 and len(self._running) < slots:
            request = self._waiting[0]
            length = request.length
            # The last token is always computed, cached or not: its output is the answer's first token.
            found = self._cached_blocks(request)
            cached_tokens = found * block_size
            wanted = length - cached_tokens
            tokens = wanted - 1 if request.fetches else min(wanted, budget)
            fresh = -(-(cached_tokens + tokens) // block_size) - found
            cached = request.keys[:found]
            if not self.blocks.can_take(cached, fresh):
                return
            self._waiting.popleft()
            self.blocks.hold(cached)
            self.blocks.take(fresh)
            request.blocks = [*cached, *([None] * fresh)]
            if request.cached_tokens is None:
                request.cached_tokens = cached_tokens
            if request.fetches:
                self._fetching[request.name] = request
                self.to_fetch.append((request, wanted - 1))
                continue
            self._take_slot(request, now_s)
            request.computed_tokens = cached_tokens
            self._publish(request, cached_tokens + tokens)
            request.chunk_tokens = tokens
            batch.append(request)
            budget -= tokens

    def _cached_blocks(self, request: CountedRequest) -> int:
        if not self.shape.prefix_cache:
            return 0
        return self.blocks.cached_prefix(request.keys, (request.length - 1) // self.shape.block_size)

    def _take_slot(self, request: CountedRequest, now_s: float) -> None:
        request.order = self._next_order
        self._next_order += 1
        self._running[request.name] = self._reading[request.name] = request
        if request.scheduled_s is None:
            request.scheduled_s = max(now_s, request.queued_s)

    def _admit_landed(self, now_s: float) -> None:
        while self._landed and len(self._running) < self.shape.max_num_seqs:
            self._take_slot(self._landed.pop(next(iter(self._landed))), now_s)

    def _make_room(self, request: CountedRequest, tokens: int, batch: list[CountedRequest]) -> bool:
        """Grow a prompt by preempting the youngest; False when it was the youngest itself."""
        fresh = -(-(request.computed_tokens + tokens) // self.shape.block_size) - len(request.blocks)
        while fresh > self.blocks.free_blocks:
            if self._preempt_youngest(batch) is request:
                return False
        self.blocks.take(fresh)
        request.blocks += [None] * fresh
        self._publish(request, request.computed_tokens + tokens)
        return True

    def _publish(self, request: CountedRequest, upto_tokens: int) -> None:
        if not self.shape.prefix_cache:
            return
        block_size, keys, blocks = self.shape.block_size, request.keys, request.blocks
        for index in range(request.computed_tokens // block_size, min(upto_tokens // block_size, len(keys))):
            if blocks[index] is None:
                blocks[index] = self.blocks.publish(keys[index])

    def _preempt_youngest(self, batch: list[CountedRequest]) -> CountedRequest:
        victim = next(reversed(self._running.values()))
        del self._running[victim.name]
        if victim.since_step >= 0:
            self._stop_decoding(victim)
        else:
            del self._reading[victim.name]
        if victim in batch:
            batch.remove(victim)
            # What it would have computed in this step will not be in the cache.
            for index in range(victim.computed_tokens // self.shape.block_size, len(victim.blocks)):
                self.blocks.forget(victim.blocks[index])
                victim.blocks[index] = None
        self.blocks.release(victim.blocks)
        victim.blocks = []
        victim.computed_tokens = 0
        victim.chunk_tokens = 0
        victim.preemptions += 1
        self.preempted += 1
        self._waiting.appendleft(victim)
        return victim

    # --- streams ------------------------------------------------------------------------------------------

    def _start_decoding(self, request: CountedRequest) -> None:
        request.since_step = self.steps
        self._decoding += 1
        self._context_tokens += request.length
        left = request.output_tokens - request.outputs
        heappush(self._ends, (self.steps + ceil(left / self._per_step), request.order, request))
        self._expect_growth(request, request.length)

    def _expect_growth(self, request: CountedRequest, length: float) -> None:
        """Before the step that computes the first token beyond its blocks, it needs another."""
        steps = ceil((len(request.blocks) * self.shape.block_size + 1 - length) / self._per_step)
        heappush(self._grows, (self.steps + max(0, steps), request.order, request))

    def _grow_streams(self, upto_step: int) -> None:
        """Give streams the blocks that they need up to this step, the oldest first."""
        grows = self._grows
        while grows and grows[0][0] <= upto_step:
            step, order, request = heappop(grows)
            if request.since_step < 0 or request.order != order:
                continue  # it has ended, or was preempted since
            preempted = False
            while not self.blocks.free_blocks and not preempted:
                preempted = self._preempt_youngest([]) is request
            if not preempted:
                self.blocks.take(1)
                request.blocks.append(None)
                heappush(grows, (step + ceil(self.shape.block_size / self._per_step), order, request))

    def _stop_decoding(self, request: CountedRequest) -> None:
        """Bring its counts up to date and forget it as a stream."""
        passed = self.steps - request.since_step
        written = min(request.output_tokens - request.outputs, int(passed * self._per_step))
        self._decoding -= 1
        self._context_tokens -= request.length + passed * self._per_step
        begin = request.since_step - 1 - self._first_kept_step
        request.token_times_s.extend(self._ended_s[begin : self.steps - self._first_kept_step])
        request.outputs += written
        request.since_step = -1
        block_size, computed = self.shape.block_size, request.length - 1
        request.computed_tokens = min(computed, len(request.blocks) * block_size)
        if self.shape.prefix_cache:
            for index in range(request.prompt_tokens // block_size, request.computed_tokens // block_size):
                if request.blocks[index] is None and index < len(request.keys):
                    request.blocks[index] = self.blocks.publish(request.keys[index])

    def _finish_streams(self) -> list[CountedRequest]:
        finished = []
        while self._ends and self._ends[0][0] <= self.steps:
            _, order, request = heappop(self._ends)
            if request.since_step < 0 or request.order != order:
                continue
            self._stop_decoding(request)
            request.outputs = request.output_tokens
            self._leave(request)
            finished.append(request)
        return finished

    def _leave(self, request: CountedRequest) -> None:
        del self._running[request.name]
        if request.keep_kv:
            self._kept[request.name] = request
        else:
            self.blocks.release(request.blocks)
            request.blocks = []

    def _drop_times(self) -> None:
        streams = (request.since_step - 1 for request in self._running.values() if request.since_step >= 0)
        needed = min(streams, default=self.steps)
        del self._ended_s[: needed - self._first_kept_step]
        self._first_kept_step = needed

    def check_invariants(self) -> None:
        """Raise if blocks or counts are inconsistent."""
        self.blocks.check_invariants([request.blocks for request in (*self.requests, *self._kept.values())])
        streams = [request for request in self._running.values() if request.since_step >= 0]
        if len(streams) != self._decoding or len(streams) + len(self._reading) != len(self._running):
            raise AssertionError("a running request neither reads nor writes, or does both")
        context = sum(stream.length + (self.steps - stream.since_step) * self._per_step for stream in streams)
        if abs(context - self._context_tokens) > 1e-6 * max(1.0, context):
            raise AssertionError("the streams' lengths do not add up")

"""Under every order of requests, cancellations and failures, nothing is lost or given back twice."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.clients.redis_quotas import Renew, Settle, Take
from phasewise.core.errors import StoreUnreachable
from phasewise.core.ports import Lease, OverLimit
from phasewise.core.request import Limits
from phasewise.gateway.api import quotas as shared_quotas
from phasewise.gateway.api.quotas import ProcessQuotas, SharedQuotas

PLACES = 3
LIMITS = Limits(requests_per_minute=60, tokens_per_minute=6_000, max_concurrent=PLACES)
# Each with the turns of the loop that pass after it. Long, since what goes wrong takes several of them.
EVENTS = st.lists(
    st.tuples(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 50)),
            st.tuples(st.just("cancel"), st.integers(0, 20)),
            st.tuples(st.just("end"), st.integers(0, 20)),
            st.tuples(st.just("mood"), st.sampled_from(["answers", "rejects", "loses_answers"])),
        ),
        st.integers(0, 4),
    ),
    min_size=30,
    max_size=80,
)


class ModelStore:
    """Places and charges as Redis would keep them. It may reject, or perform and lose the answers."""

    def __init__(self):
        self.mood = "answers"
        self.places: set[str] = set()
        self.charged: Counter[str] = Counter()

    async def perform(self, operations, deadline_s):
        # The mood of the moment it was sent: what changes on the way concerns the next trip.
        mood = self.mood
        await asyncio.sleep(0)
        if mood == "rejects":
            raise StoreUnreachable("rejected")
        answers = [self._perform(operation) for operation in operations]
        await asyncio.sleep(0)
        if mood == "loses_answers":
            raise StoreUnreachable("lost")
        return answers

    def _perform(self, operation):
        match operation:
            case Take(_, lease_id, requests, tokens, places):
                if len(self.places) >= places:
                    return 0, 0, True
                self.places.add(lease_id)
                self.charged[lease_id] += requests + tokens
                return 0, 0, False
            case Settle(_, lease_id, requests, tokens):
                self.places.discard(lease_id)
                self.charged[lease_id] += requests + tokens
            case Renew(_, lease_ids):
                self.places |= set(lease_ids)
        return None

    async def close(self):
        pass


class Player:
    """Plays events on shared quotas: what waits to be counted, and what runs."""

    def __init__(self, store):
        self.store = store
        self.quotas = SharedQuotas(store, ProcessQuotas(), 10.0, "count_alone")
        self.waiting: list[asyncio.Task] = []
        self.running: list[Lease] = []

    def take(self, tokens):
        self.waiting.append(asyncio.create_task(self.quotas.take("k", LIMITS, tokens)))

    def cancel(self, which):
        if self.waiting:
            self.waiting[which % len(self.waiting)].cancel()

    def end(self, which):
        if self.running:
            lease = self.running.pop(which % len(self.running))
            self.quotas.settle(lease, lease.tokens)

    def mood(self, mood):
        self.store.mood = mood

    def collect(self):
        for task in [it for it in self.waiting if it.done()]:
            self.waiting.remove(task)
            if not task.cancelled() and isinstance(task.result(), Lease):
                self.running.append(task.result())
        assert sum(not lease.shared for lease in self.running) <= PLACES


async def play(events):
    """Play the events, and then let the store answer until all is calm."""
    player = Player(ModelStore())
    await player.quotas.start()
    for (event, value), turns in events:
        getattr(player, event)(value)
        for _ in range(turns):
            await asyncio.sleep(0)
        player.collect()
    player.store.mood = "answers"
    await until_calm(player.quotas, player.waiting)
    player.collect()
    return player.store, player.quotas, player.running


async def until_calm(quotas, waiting):
    """Until the store answers and has got everything, within a bounded number of turns."""
    for _ in range(2_000):
        if not quotas.degraded and not quotas._settlements and all(it.done() for it in waiting):
            break
        await asyncio.sleep(0)
    # A trip that is under way ends within these.
    for _ in range(20):
        await asyncio.sleep(0)
    assert not quotas.degraded
    assert not quotas._settlements


@settings(max_examples=100)
@given(events=EVENTS)
def test_in_the_end_the_store_knows_exactly_the_slots_of_what_runs(events):
    async def check():
        store, quotas, running = await play(events)
        shared = {lease.lease_id for lease in running if lease.shared}
        assert set(quotas._open) == shared
        assert store.places == shared
        for lease in running:
            quotas.settle(lease, lease.tokens)
        await until_calm(quotas, [])
        assert store.places == set()
        assert not quotas._open
        await quotas.stop()

    run_quickly(check)


@settings(max_examples=100)
@given(events=EVENTS)
def test_nothing_is_given_back_that_was_not_charged(events):
    async def check():
        store, quotas, running = await play(events)
        assert all(charge >= 0 for charge in store.charged.values())
        for lease in running:
            if lease.shared:
                assert store.charged[lease.lease_id] > 0
        await quotas.stop()

    run_quickly(check)


def run_quickly(check):
    """In a loop of its own; the store is tried again at once, and renewals come in every turn."""
    before = shared_quotas.TRY_AGAIN_EVERY_S, shared_quotas.RENEW_EVERY_S
    shared_quotas.TRY_AGAIN_EVERY_S = shared_quotas.RENEW_EVERY_S = 0.0
    try:
        asyncio.run(check())
    finally:
        shared_quotas.TRY_AGAIN_EVERY_S, shared_quotas.RENEW_EVERY_S = before


def test_places_over_the_limit_are_rejected_in_the_model_too():
    async def check():
        _, quotas, running = await play([(("take", 1), 4)] * (PLACES + 1))
        assert len(running) == PLACES
        assert isinstance(await quotas.take("k", LIMITS, 1), OverLimit)
        await quotas.stop()

    run_quickly(check)

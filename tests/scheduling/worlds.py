"""A world for flows without a gateway: workers, a queue, and limits that remember their leases."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from phasewise.core.decision import Decision
from phasewise.core.kv_transfer import KvTicket
from phasewise.core.ports import Lease
from phasewise.core.worker import Role
from phasewise.scheduling import CacheMiss, Prefilled, World, request_flow
from phasewise.scheduling.breakers import Breakers, RetryBudget
from phasewise.scheduling.ledger import LoadLedger
from phasewise.scheduling.policies import least_outstanding, whole
from phasewise.scheduling.queue import WaitingQueue
from phasewise.scheduling.world import ClusterView
from tests.builders import make_request, make_worker

LEASE_S = 30.0


class RememberedLeases:
    """Gives leases out and takes each back once, no more."""

    def __init__(self):
        self.open = {}
        self.settled = {}

    def lease(self, lease_id, tokens):
        lease = self.open[lease_id] = Lease(lease_id, "key", tokens, shared=False)
        return lease

    def settle(self, lease, used_tokens):
        assert self.open.pop(lease.lease_id) is lease
        self.settled[lease.lease_id] = used_tokens


class Remembered:
    """Replaces the engine speeds and the prefix index: keeps what is reported, in order."""

    def __init__(self):
        self.reported = []
        self.sizes = self.reading = self
        self.cached = 0

    def __getattr__(self, name):
        return lambda *what: self.reported.append((name, *what))

    def is_due(self):
        return True

    def cached_tokens(self, worker, hashes, prompt_tokens):
        return self.cached

    def held_blocks(self, worker, hashes):
        return len(hashes) if self.cached else 0


def always_split(request, candidates, can_transfer):
    """Disaggregates wherever possible, so that flows do not depend on a rule's figures."""
    decoders = [it for it in candidates if it.worker.role is not Role.PREFILL]
    decision = least_outstanding(request, decoders or candidates)
    if not request.splittable or decision.chosen.role is not Role.DECODE:
        return decision
    readers = [it.worker for it in candidates if it.worker.role is Role.PREFILL]
    prefill = next((it for it in readers if can_transfer(it, decision.chosen)), None)
    return replace(decision, prefill=prefill)


def make_world(workers=2, *, up=None, slots=256, budget=10.0, capacity=1_000, aging_s=5.0, weights=()):
    """So many workers w0, w1, ..., of which the first `up` answer, with these weights."""
    nouns = [
        make_worker(f"w{index}", slots=slots, weights=dict(enumerate(weights)).get(index, ""))
        for index in range(workers)
    ]
    return _world(nouns, whole(least_outstanding), up, budget, capacity, aging_s)


def split_at_random(seed):
    """Any candidate of any role decodes, and any that may transfer KV to it computes the prompt, or none."""
    dice = Random(seed)  # noqa: S311 - no secret

    def place(request, candidates, can_transfer):
        chosen = dice.choice(candidates).worker
        readers = [
            it.worker for it in candidates if it.worker is not chosen and can_transfer(it.worker, chosen)
        ]
        prefill = dice.choice([None, *readers]) if request.splittable else None
        return Decision(chosen, "random", "chance", tuple(candidates), prefill)

    return place


def make_split_world(
    prefill=1,
    decode=1,
    mixed=0,
    *,
    policy=always_split,
    slots=256,
    budget=10.0,
    capacity=1_000,
    aging_s=5.0,
    **parts,
):
    """Prefill workers p0, ..., decode workers d0, ... and mixed ones m0, ...; all requests are split."""
    counts = {Role.PREFILL: prefill, Role.DECODE: decode, Role.MIXED: mixed}
    nouns = [
        make_worker(f"{role[0]}{index}", slots=slots, role=role)
        for role, count in counts.items()
        for index in range(count)
    ]
    reported = Remembered()
    return _world(nouns, policy, None, budget, capacity, aging_s, paces=reported, prefixes=reported, **parts)


def _world(nouns, policy, up, budget, capacity, aging_s, **parts):
    world = World(
        ClusterView(nouns),
        LoadLedger(),
        RetryBudget(burst=budget),
        policy,
        Breakers(),
        WaitingQueue(capacity, aging_s),
        RememberedLeases(),
        **parts,
    )
    for worker in nouns[: len(nouns) if up is None else up]:
        world.cluster.mark_up(worker.name, worker.incarnation)
    return world


def start_flow(world, at_s=0.0, **fields):
    """A flow that was just admitted, and its first step after that. Hold it: one that is let go ends."""
    flow = request_flow(make_request(arrived_s=at_s, **fields), world)
    next(flow)
    return flow, flow.send(CacheMiss(at_s))


def make_prefilled(step, at_s=1.0, *, prompt_tokens=100, **fields):
    """The KV of a prefill step's prompt, good for a while."""
    return Prefilled(at_s, KvTicket(step.worker.ref, b"{}", prompt_tokens, at_s + LEASE_S), **fields)

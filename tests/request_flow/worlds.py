"""A world for flows without a gateway: workers, a line, and limits that remember their leases."""

from __future__ import annotations

from phasewise.model.limits import Lease
from phasewise.request_flow import CacheMiss, World, request_flow
from phasewise.routing.policies import least_outstanding, whole
from phasewise.state.breakers import Breakers
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger
from phasewise.state.retry_budget import RetryBudget
from phasewise.state.waiting_line import WaitingLine
from tests.builders import make_request, make_worker


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


def make_world(workers=2, *, up=None, slots=256, budget=10.0, capacity=1_000, aging_s=5.0):
    """So many workers w0, w1, ..., of which the first `up` answer."""
    nouns = [make_worker(f"w{index}", slots=slots) for index in range(workers)]
    world = World(
        ClusterView(nouns),
        LoadLedger(),
        RetryBudget(burst=budget),
        whole(least_outstanding),
        Breakers(),
        WaitingLine(capacity, aging_s),
        RememberedLeases(),
    )
    for worker in nouns[: workers if up is None else up]:
        world.cluster.mark_up(worker.name, worker.incarnation)
    return world


def start_flow(world, at_s=0.0, **fields):
    """A flow that was just admitted, and its first step after that. Hold it: one that is let go ends."""
    flow = request_flow(make_request(arrived_s=at_s, **fields), world)
    next(flow)
    return flow, flow.send(CacheMiss(at_s))

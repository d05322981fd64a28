"""The life of a request as one generator: it yields steps and is sent their outcomes.

It does no IO and reads no clock. Placing, booking, retrying and giving up exist here, once; performing the
steps is the driver's: the gateway over HTTP, later a simulator in virtual time.

    flow = request_flow(request, world)
    step = next(flow)                      # Generate(worker) or Reject(reason)
    step = flow.send(Failed(...))          # the next step, or StopIteration when the request has ended
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from phasewise.errors import FailureKind
from phasewise.model.decision import Candidate, Decision, RejectReason
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Worker, WorkerRef
from phasewise.routing.policies import Policy
from phasewise.state.cluster_view import ClusterView
from phasewise.state.load_ledger import LoadLedger
from phasewise.state.retry_budget import RetryBudget

MAX_ATTEMPTS = 2
"""A prompt that kills engines kills at most this many."""
ASSUMED_OUTPUT_TOKENS = 256
"""What a request without a limit is taken to write, when comparing loads."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Run the request on a worker and stream the answer."""

    decision: Decision
    attempt: int

    @property
    def worker(self) -> Worker:
        """Where to run it."""
        return self.decision.chosen


@dataclass(frozen=True, slots=True)
class Reject:
    """Tell the client that the request is not served. The last step of a flow."""

    reason: RejectReason
    detail: str


Step = Generate | Reject


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The answer, or the engine's own refusal of a bad request, reached the client."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker broke the conversation; `content_sent`: the client has seen some of the answer."""

    at_s: float
    kind: FailureKind
    content_sent: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client went away."""

    at_s: float


Result = Succeeded | Failed | Cancelled


@dataclass(frozen=True, slots=True)
class World:
    """The state that flows share."""

    cluster: ClusterView
    ledger: LoadLedger
    retries: RetryBudget
    policy: Policy


RequestFlow = Generator[Step, Result, None]


def request_flow(request: GenerationRequest, world: World) -> RequestFlow:
    """Place the request, run it, and run it once more elsewhere if that is safe and affordable."""
    world.retries.earn()
    tried: set[WorkerRef] = set()
    failure: Failed | None = None
    for attempt in range(1, MAX_ATTEMPTS + 1):
        if failure is not None and not world.retries.take():
            yield Reject(RejectReason.RETRY_BUDGET_SPENT, f"a worker failed ({failure.kind})")
            return
        placed = _place(request, world, tried)
        if isinstance(placed, Reject):
            yield placed
            return
        result = yield from _run(request, world, Generate(placed, attempt))
        if not isinstance(result, Failed):
            return
        failure = result
        tried.add(placed.chosen.ref)
        _learn(world, placed.chosen, failure)
        if failure.content_sent:
            return
    yield Reject(RejectReason.ALL_ATTEMPTS_FAILED, f"{MAX_ATTEMPTS} attempts failed")


def _run(request: GenerationRequest, world: World, step: Generate) -> Generator[Generate, Result, Result]:
    booking = world.ledger.book(step.worker.ref, expected_tokens(request))
    try:
        return (yield step)
    finally:
        world.ledger.release(booking)


def _place(request: GenerationRequest, world: World, tried: set[WorkerRef]) -> Decision | Reject:
    usable = world.cluster.usable(request.model)
    if not usable and request.model not in world.cluster.models:
        return Reject(RejectReason.NO_WORKER_FOR_MODEL, "no worker serves this model")
    # A worker that failed this request is asked again only where there is no other: its failure may have
    # been a closed idle connection, and the attempts are counted anyway.
    fresh = (tuple(worker for worker in usable if worker.ref not in tried) or usable) if tried else usable
    if not fresh:
        return Reject(RejectReason.NO_HEALTHY_WORKER, "no worker of this model answers")
    return world.policy([_candidate(world.ledger, worker) for worker in fresh])


def _candidate(ledger: LoadLedger, worker: Worker) -> Candidate:
    load = ledger.load(worker.ref)
    return Candidate(worker, outstanding_tokens=load.tokens, outstanding_requests=load.requests)


def _learn(world: World, worker: Worker, failure: Failed) -> None:
    if failure.kind is FailureKind.REFUSED:
        world.cluster.report_unreachable(worker.ref, "refused a connection")


def expected_tokens(request: GenerationRequest) -> int:
    """The work a request is booked as: its prompt and what it may write."""
    return request.estimated_prompt_tokens + (request.max_output_tokens or ASSUMED_OUTPUT_TOKENS)

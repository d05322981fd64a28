"""What an attempt tells of its workers: whether to trust them, how fast they are, what they hold in cache.

Nothing is learned of a worker's former incarnations. What is made of it is the breakers', the pace book's
and the prefix index's.
"""

from __future__ import annotations

from phasewise.errors import FailureKind
from phasewise.model.hand_over import EngineAccount, KvTicket
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import WorkerRef
from phasewise.request_flow.outcomes import Failed, Outcome, Prefilled, Succeeded
from phasewise.request_flow.world import World
from phasewise.state.breakers import Trial
from phasewise.state.load_ledger import Booking

_NOT_THE_WORKERS_FAULT = frozenset(
    {FailureKind.NO_SOCKET, FailureKind.NOT_CONTINUED, FailureKind.HAND_OVER, FailureKind.TOO_LATE}
)


# --- trust ------------------------------------------------------------------------------------------------


def learn_trust(world: World, worker: WorkerRef, trial: Trial | None, result: Outcome | None) -> None:
    """How the worker served its part of the request; None if it was not asked to, or broken off."""
    if not world.cluster.is_current(worker):
        return
    if isinstance(result, Succeeded | Prefilled):
        world.breakers.succeeded(worker, trial)
    elif isinstance(result, Failed) and not _may_be_the_requests_fault(result, trial):
        world.breakers.failed(worker, trial, result.at_s)
        if result.kind is FailureKind.REFUSED:
            world.cluster.report_unreachable(worker, "refused a connection")
    else:
        # The client left, the gateway stops, is late or has no socket, KV did not come or an answer cannot go
        # on from another worker's, or nobody knows yet.
        world.breakers.abandoned(worker, trial)


def learn_pair(
    world: World, pair: WorkerRef, trial: Trial | None, result: Outcome | None, *, handed_over: bool
) -> None:
    """Whether two workers of today handed KV over."""
    if isinstance(result, Failed) and result.kind is FailureKind.HAND_OVER:
        world.pairs.failed(pair, trial, result.at_s)
    elif handed_over:
        world.pairs.succeeded(pair, trial)
    else:
        world.pairs.abandoned(pair, trial)


def blame(world: World, worker: WorkerRef, failure: Failed) -> None:
    """Another worker answered the request that this one answered with 5xx: it was the worker."""
    if (
        failure.kind is FailureKind.SERVER_ERROR
        and not failure.content_sent
        and world.cluster.is_current(worker)
    ):
        world.breakers.failed(worker, None, failure.at_s)


def _may_be_the_requests_fault(failure: Failed, trial: Trial | None) -> bool:
    """Whether nobody knows yet that it was the worker's: a reply of 5xx may be the request's own.

    Engines answer some mistakes of clients with 500; a client who repeats one must not take all workers away.
    """
    if failure.kind is FailureKind.SERVER_ERROR:
        return trial is None and not failure.content_sent
    return failure.kind in _NOT_THE_WORKERS_FAULT


# --- pace, sizes and caches -------------------------------------------------------------------------------


def learn_reading(
    world: World, request: GenerationRequest, booking: Booking, held_blocks: int, account: EngineAccount
) -> None:
    """A worker has computed the prompt itself; `held_blocks` of it were taken to be in its cache."""
    worker, prompt_tokens, cached_tokens = booking.worker, account.prompt_tokens, account.cached_tokens
    if prompt_tokens is None or not world.cluster.is_current(worker):
        return
    if cached_tokens is None:
        # An engine that does not say what was cached holds the prompt now all the same.
        cached_tokens = held_blocks = 0
    elif world.learns_pace and booking.read_alone and account.prefill_s is not None:
        world.paces.learn_read(worker, prompt_tokens, cached_tokens, account.prefill_s)
    if request.prefix_hashes:
        world.prefixes.served(worker, request.prefix_hashes, prompt_tokens, cached_tokens, held_blocks)


def learn_fetching(
    world: World, request: GenerationRequest, worker: WorkerRef, kv: KvTicket, account: EngineAccount
) -> None:
    """A worker has fetched the prompt's KV, but for what it had itself, and holds all of it now.

    What it reports as cached is what the other worker had in cache: that it had some itself is only expected.
    """
    if not world.cluster.is_current(worker):
        return
    hashes, fetched_tokens = request.prefix_hashes, kv.prompt_tokens
    if hashes:
        fetched_tokens -= world.prefixes.cached_tokens(worker, hashes, kv.prompt_tokens)
        world.prefixes.served(worker, hashes, kv.prompt_tokens, 0)
    if world.learns_pace and account.queue_s is not None and fetched_tokens > 0:
        world.paces.learn_fetch(worker, fetched_tokens, account.queue_s)


def learn_writing(world: World, worker: WorkerRef, account: EngineAccount) -> None:
    """A worker has written an answer, which is still among its streams."""
    if world.learns_pace and account.gap_s is not None and world.cluster.is_current(worker):
        world.paces.learn_step(worker, max(1, world.ledger.load(worker).streams), account.gap_s)


def learn_sizes(
    world: World, request: GenerationRequest, prompt_tokens: int | None, output_tokens: int | None
) -> None:
    """How long the prompt and the answer turned out to be; of several answers none's length is known."""
    if world.learns_pace and request.choices == 1:
        world.paces.sizes.learn(request, prompt_tokens, output_tokens)

"""The rejections that name a model or workers, in words for the client that gets them.

They hold names, never addresses, which only the operator may see.
"""

from __future__ import annotations

from collections.abc import Sequence

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.worker import UNKNOWN_MODEL, WorkerRef
from phasewise.scheduling.steps import Reject
from phasewise.scheduling.world import ClusterView, Health, WorkerState

RETRY_SOON_S = 1.0
NAMED = 3
"""The most workers that are named."""
NAMED_MODELS = 8
SHOWN_CHARACTERS = 100
"""The most that is shown of a model's name, which is the client's own text."""
_STATES = {
    Health.UNKNOWN: "was not checked yet",
    Health.SUSPECT: "stands still",
    Health.HUNG: "stands still",
    Health.DOWN: "is down",
}
_BECAUSE = {
    FailureKind.CONNECTION_REFUSED: "the engine accepted no connection",
    FailureKind.CLOSED: "the engine closed the connection",
    FailureKind.TIMED_OUT: "the engine did not answer in time",
    FailureKind.PROTOCOL: "the engine's answer could not be read",
    FailureKind.SERVER_ERROR: "the engine answered with an error",
}
_OPERATOR = "`phasewise status` shows the operator why"


def no_worker_for_model(model: str, cluster: ClusterView) -> Reject:
    """The rejection of a request for a model that no worker is known to serve."""
    asked = f"no worker serves the model {_quoted(model)}"
    if unasked := [state for state in cluster.snapshot() if state.worker.model == UNKNOWN_MODEL]:
        words = f"{asked} now: {_in_words(unasked)}, and what it serves is still unknown"
        hint = f"try again in a second; {_OPERATOR}"
        return Reject(RejectReason.NO_HEALTHY_WORKER, f"{words}. hint: {hint}", RETRY_SOON_S)
    hint = f"ask for one that is served: {_listed(cluster.models, NAMED_MODELS)}"
    return Reject(RejectReason.NO_WORKER_FOR_MODEL, f"{asked}. hint: {hint}")


def no_healthy_worker(model: str, cluster: ClusterView, attempts: int) -> Reject:
    """The rejection of a request for whose model no worker is healthy."""
    words = f"no worker of the model {_quoted(model)} answers"
    if out := [state for state in cluster.serving(model) if state.health is not Health.UP]:
        words += f": {_in_words(out)}"
    hint = f"try again in a second; {_OPERATOR}"
    return Reject(RejectReason.NO_HEALTHY_WORKER, f"{words}. hint: {hint}", RETRY_SOON_S, attempts)


def queue_timeout(model: str, failing: Sequence[str], retry_after_s: float, attempts: int) -> Reject:
    """The rejection of a request that waited in vain; the circuits of `failing` workers are open."""
    words = f"no worker of the model {_quoted(model)} had a free slot in time"
    if failing:
        words += f"; with an open circuit, because most requests fail there: {_listed(failing, NAMED)}"
    return Reject(RejectReason.QUEUE_TIMEOUT, words, retry_after_s, attempts)


def all_attempts_failed(tried: Sequence[WorkerRef], last: FailureKind, attempts: int) -> Reject:
    """The rejection of a request that failed as often as it may."""
    on = f" on {_listed([ref.name for ref in tried], NAMED)}" if tried else ""
    hint = "do not send it again if other requests are answered: it may end engines; their logs say more"
    words = f"{attempts} attempts failed{on}; the last one because {_BECAUSE.get(last, f'of {last}')}"
    return Reject(RejectReason.ALL_ATTEMPTS_FAILED, f"{words}. hint: {hint}", attempts=attempts)


def _in_words(states: Sequence[WorkerState]) -> str:
    return _listed([f"{state.worker.name} {_STATES.get(state.health, 'is up')}" for state in states], NAMED)


def _listed(names: Sequence[str], most: int) -> str:
    named, more = ", ".join(names[:most]), len(names) - most
    return f"{named} and {more} more" if more > 0 else named


def _quoted(model: str) -> str:
    return repr(model if len(model) <= SHOWN_CHARACTERS else f"{model[:SHOWN_CHARACTERS]}...")

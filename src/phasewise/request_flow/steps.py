"""What a flow asks its driver to do. Which step comes when is the flow's to say."""

from __future__ import annotations

from collections.abc import Callable

from phasewise.model.decision import Decision, RejectReason
from phasewise.model.hand_over import KvTicket
from phasewise.model.limits import Limits
from phasewise.model.noun import noun
from phasewise.model.worker import Worker
from phasewise.state.breakers import Trial
from phasewise.state.waiting_line import Ticket


@noun
class TakeQuota:
    """Count the request against its key's limits. Outcome: QuotaAnswered."""

    key_id: str
    limits: Limits
    tokens: int


@noun
class LookUpCache:
    """Look for a stored answer, or one under way to the same request. Outcome: CacheMiss or CacheHit."""


@noun
class ServeFound:
    """Send the answer that was found. Outcome: Succeeded, or Failed where it was under way and broke off."""


@noun
class Together:
    """Perform several steps at once. Outcome: theirs, in the same order, as a tuple.

    A client that leaves when some have been performed is told of in the place of the others: what they gave
    is to be given back.
    """

    steps: tuple[TakeQuota | LookUpCache, ...]


@noun
class Wait:
    """Wait until the ticket is granted, or until a time. Outcome: Granted or TimedOut."""

    ticket: Ticket
    until_s: float


@noun
class Prefill:
    """Compute the prompt's KV on the decision's prefill worker. Outcome: Prefilled, Succeeded or Failed.

    Succeeded means that the engine itself refused the request and the client has been told.
    """

    decision: Decision
    attempt: int
    trial: Trial | None = None

    @property
    def worker(self) -> Worker:
        """Where to run it."""
        if self.decision.prefill is None:
            raise ValueError("a decision without a prefill worker has no prefill step")
        return self.decision.prefill


@noun
class Generate:
    """Run the request on a worker and stream the answer. Outcome: Succeeded or Failed.

    One that `resumes` goes on from what the client already has. One with `kv` begins with a prompt that was
    computed elsewhere: it is sent before the ticket's `good_until_s`, or not at all and fails as TOO_LATE.
    That is the driver's to see to, as nobody else knows when it sends. One with a `trial` tries a worker that
    was resting: the driver gives the trial a way to see whether the answer has begun. `on_first_content` is
    called when it has.
    """

    decision: Decision
    attempt: int
    resumes: bool = False
    trial: Trial | None = None
    kv: KvTicket | None = None
    on_first_content: Callable[[], None] | None = None

    @property
    def worker(self) -> Worker:
        """Where to run it."""
        return self.decision.chosen


@noun
class Reject:
    """Tell the client that the request is not served, or not to its end. The last step of a flow.

    `attempts` were made before: with none the request was turned away, with some it failed, as it did without
    any if the client has the beginning of an answer that was found.
    """

    reason: RejectReason
    detail: str
    retry_after_s: float | None = None
    attempts: int = 0


Step = TakeQuota | LookUpCache | Together | ServeFound | Wait | Prefill | Generate | Reject

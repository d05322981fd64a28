"""The steps that a flow asks its driver to perform, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable

from phasewise.core.decision import Decision, RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.kv_transfer import KvTicket
from phasewise.core.ports import QuotaAnswer
from phasewise.core.request import Limits
from phasewise.core.timeline import NO_ACCOUNT, EngineAccount
from phasewise.core.value import value
from phasewise.core.worker import Worker
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.queue import Ticket


@value
class LookUpCache:
    """Look for a stored answer or an identical request under way.

    Outcome: CacheMiss, CacheHit or IdenticalUnderWay. After a miss, identical requests may follow this one.
    """


@value
class CountAndLookUp:
    """Count the request against its key's limits and, at the same time, do a LookUpCache.

    Outcome: QuotaAnswered and the outcome of the look-up. The latter is Cancelled if the client leaves after
    the request was counted: the count is then given back.
    """

    key_id: str
    limits: Limits
    tokens: int


@value
class ServeStored:
    """Send the stored answer that was found. Outcome: Succeeded."""


@value
class FollowIdentical:
    """Stream the answer of the identical request, the leader, to this client too.

    Succeeded: the client has the whole answer. LeaderLost, NotShareable or TimedOut: the client has nothing.
    Failed: the answer broke off after the client had some of it.
    """


@value
class LookAgain:
    """Look for another identical request under way. Outcome: CacheMiss or IdenticalUnderWay."""


@value
class Wait:
    """Wait until the ticket is granted, or until a time. Outcome: Granted or TimedOut."""

    ticket: Ticket
    until_s: float


@value
class Prefill:
    """Compute the prompt's KV on the decision's prefill worker. Outcome: Prefilled, Succeeded or Failed.

    Succeeded means that the engine rejected the request as invalid and the client has that response.
    """

    decision: Decision
    attempt: int
    trial: BreakerTrial | None = None

    @property
    def worker(self) -> Worker:
        """Where to run it."""
        if self.decision.prefill is None:
            raise ValueError("a decision without a prefill worker has no prefill step")
        return self.decision.prefill


@value
class Generate:
    """Run the request on a worker and stream the answer. Outcome: Succeeded or Failed.

    With `resumes` it continues after what the client already has. With `kv` the prompt was computed
    elsewhere: the driver sends the request before the ticket's `good_until_s`, or fails it as TOO_LATE. With
    a `trial` it tries a worker whose circuit is open: the driver sets how the trial sees that the answer has
    begun. `on_first_content` is called when it has.
    """

    decision: Decision
    attempt: int
    resumes: bool = False
    trial: BreakerTrial | None = None
    kv: KvTicket | None = None
    on_first_content: Callable[[], None] | None = None

    @property
    def worker(self) -> Worker:
        """Where to run it."""
        return self.decision.chosen


@value
class Reject:
    """Answer the client with an error. The last step of a flow.

    With no `attempts` the request was rejected; with some it failed. It also failed if the client has the
    beginning of a shared answer.
    """

    reason: RejectReason
    detail: str
    retry_after_s: float | None = None
    attempts: int = 0


Step = (
    LookUpCache
    | CountAndLookUp
    | ServeStored
    | FollowIdentical
    | LookAgain
    | Wait
    | Prefill
    | Generate
    | Reject
)


# --- The outcomes of steps, each with its time. Any step may end in `Cancelled`.


@value
class QuotaAnswered:
    """The request was counted, or found to be over a limit."""

    at_s: float
    answer: QuotaAnswer


@value
class CacheMiss:
    """No stored answer matches, and no identical request is under way."""

    at_s: float


@value
class CacheHit:
    """A stored answer was found."""

    at_s: float


@value
class IdenticalUnderWay:
    """An identical request is under way, and its answer may be shared."""

    at_s: float


LookedUp = CacheMiss | CacheHit | IdenticalUnderWay


@value
class LeaderLost:
    """The identical request ended without a whole answer."""

    at_s: float


@value
class NotShareable:
    """The answer to the identical request holds more than text, so it cannot be shared."""

    at_s: float


@value
class Granted:
    """The ticket was granted: there is a free slot for the request."""

    at_s: float


@value
class TimedOut:
    """The ticket was not granted in time, or the identical request had no worker in time."""

    at_s: float


@value
class Succeeded:
    """The answer, or the engine's own rejection of a bad request, reached the client.

    `tokens` are those of prompt and answer, here and below: as the engine counted them, else as the gateway
    counted them in the stream; None if unknown.
    """

    at_s: float
    tokens: int | None = None
    account: EngineAccount = NO_ACCOUNT


@value
class Prefilled:
    """The prompt's KV is ready on the prefill worker."""

    at_s: float
    ticket: KvTicket
    account: EngineAccount = NO_ACCOUNT


@value
class Failed:
    """The worker failed, or a shared answer broke off.

    `content_sent`: the client has some of the answer. `resumable`: another worker can continue it from there.
    """

    at_s: float
    kind: FailureKind
    content_sent: bool
    resumable: bool = False
    tokens: int | None = None


@value
class Cancelled:
    """The client went away."""

    at_s: float
    tokens: int | None = None


Outcome = (
    QuotaAnswered
    | tuple[QuotaAnswered, LookedUp | Cancelled]
    | LookedUp
    | LeaderLost
    | NotShareable
    | Granted
    | TimedOut
    | Prefilled
    | Succeeded
    | Failed
    | Cancelled
)

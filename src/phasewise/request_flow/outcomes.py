"""What came of a step, each with the time it happened. `Cancelled` may come of any step."""

from __future__ import annotations

from phasewise.errors import FailureKind
from phasewise.model.hand_over import NO_ACCOUNT, EngineAccount, KvTicket
from phasewise.model.limits import QuotaAnswer
from phasewise.model.noun import noun


@noun
class QuotaAnswered:
    """The request was counted, or found to be over a limit."""

    at_s: float
    answer: QuotaAnswer


@noun
class CacheMiss:
    """No stored answer fits."""

    at_s: float


@noun
class CacheHit:
    """An answer was found: kept from before, or under way to somebody who asked the same."""

    at_s: float


@noun
class Granted:
    """The ticket was granted: there is room for the request."""

    at_s: float


@noun
class TimedOut:
    """The ticket was not granted in time."""

    at_s: float


@noun
class Succeeded:
    """The answer, or the engine's own refusal of a bad request, reached the client.

    `tokens` are those of prompt and answer, here as below: as the engine counted them, else as they were seen
    to pass; None where nobody could see.
    """

    at_s: float
    tokens: int | None = None
    account: EngineAccount = NO_ACCOUNT


@noun
class Prefilled:
    """The prompt's KV waits on the prefill worker to be fetched."""

    at_s: float
    ticket: KvTicket
    account: EngineAccount = NO_ACCOUNT


@noun
class Failed:
    """The worker broke the conversation, or an answer that was joined broke off.

    `content_sent`: the client has seen some of the answer; `resumable`: and another worker could go on from
    there as if nothing had happened.
    """

    at_s: float
    kind: FailureKind
    content_sent: bool
    resumable: bool = False
    tokens: int | None = None


@noun
class Cancelled:
    """The client went away."""

    at_s: float
    tokens: int | None = None


Outcome = (
    QuotaAnswered
    | tuple[QuotaAnswered | CacheMiss | CacheHit | Cancelled, ...]
    | CacheMiss
    | CacheHit
    | Granted
    | TimedOut
    | Prefilled
    | Succeeded
    | Failed
    | Cancelled
)

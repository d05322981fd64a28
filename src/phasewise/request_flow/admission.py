"""Admit a request: count it against its key's limits and, at the same time, look for a stored answer."""

from __future__ import annotations

from collections.abc import Generator

from phasewise.model.decision import RejectReason
from phasewise.model.limits import Lease, LimitKind, NotCounted, OverLimit, QuotaAnswer
from phasewise.model.noun import noun
from phasewise.model.request import GenerationRequest
from phasewise.request_flow.outcomes import CacheHit, CacheMiss, Cancelled, Outcome, QuotaAnswered
from phasewise.request_flow.steps import LookUpCache, Reject, Step, TakeQuota, Together

ASSUMED_OUTPUT_TOKENS = 256
"""What a request without a limit is taken to write, when comparing loads."""

_OVER_LIMIT = {
    LimitKind.REQUESTS: RejectReason.REQUESTS_OVER_LIMIT,
    LimitKind.TOKENS: RejectReason.TOKENS_OVER_LIMIT,
    LimitKind.CONCURRENCY: RejectReason.CONCURRENCY_OVER_LIMIT,
}


@noun
class Admitted:
    """The request may be served; `lease` is to be settled when it has ended.

    `found` holds where there is an answer to it already, `left` where its client went away meanwhile.
    """

    at_s: float
    lease: Lease | None
    found: bool = False
    left: bool = False


def expected_tokens(request: GenerationRequest) -> int:
    """The work of a request: its prompt and what it may write."""
    return request.estimated_prompt_tokens + expected_output_tokens(request)


def expected_output_tokens(request: GenerationRequest) -> int:
    """What a request may write, in all its answers."""
    output_tokens = request.max_output_tokens
    if output_tokens is None:
        output_tokens = ASSUMED_OUTPUT_TOKENS
    return output_tokens * request.choices


def charged_tokens(request: GenerationRequest) -> int:
    """What a request takes from its key's tokens until it is known what it used: a full bucket at most.

    More would lock a key out, for days if it names a silly limit, where nobody can tell what was used.
    """
    expected, per_minute = expected_tokens(request), request.limits.tokens_per_minute
    return expected if per_minute is None else min(expected, per_minute)


def admit(request: GenerationRequest) -> Generator[Step, Outcome, Admitted | Reject | Cancelled]:
    """Count the request, or refuse it."""
    if request.limits.unlimited:
        outcome = yield LookUpCache()
        if isinstance(outcome, Cancelled):
            return outcome
        if not isinstance(outcome, CacheMiss | CacheHit):
            raise TypeError(f"{type(outcome).__name__} is no outcome of LookUpCache")
        return Admitted(outcome.at_s, None, found=isinstance(outcome, CacheHit))
    quota = TakeQuota(request.key_id, request.limits, charged_tokens(request))
    outcomes = yield Together((quota, LookUpCache()))
    if isinstance(outcomes, Cancelled):
        return outcomes
    if not isinstance(outcomes, tuple) or not isinstance(outcomes[0], QuotaAnswered):
        raise TypeError(f"{type(outcomes).__name__} is no outcome of steps taken together")
    answer, looked_up = outcomes[0].answer, outcomes[1]
    if isinstance(answer, Lease):
        at_s = max(outcome.at_s for outcome in outcomes)
        return Admitted(
            at_s, answer, found=isinstance(looked_up, CacheHit), left=isinstance(looked_up, Cancelled)
        )
    return _refused(answer)


def _refused(answer: QuotaAnswer) -> Reject:
    if isinstance(answer, OverLimit):
        detail = f"this key's limit of {answer.kind} is reached"
        return Reject(_OVER_LIMIT[answer.kind], detail, answer.retry_after_s)
    if isinstance(answer, NotCounted):
        return Reject(RejectReason.LIMITS_UNAVAILABLE, "limits cannot be checked now", answer.retry_after_s)
    raise TypeError("a lease is not a refusal")

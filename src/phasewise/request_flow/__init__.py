"""The life of a request as one generator that yields steps and is sent their outcomes.

It does no IO and reads no clock. Admitting, placing, waiting, retrying and giving up exist here, once;
performing the steps is the driver's: the gateway over HTTP, later a simulator in virtual time.

    flow = request_flow(request, world)
    step = next(flow)                      # LookUpCache(), Wait(ticket), Generate(worker), Reject(reason)
    step = flow.send(Failed(...))          # the next step, or StopIteration when the request has ended
"""

from phasewise.request_flow.admission import expected_tokens
from phasewise.request_flow.flow import MAX_ATTEMPTS, RequestFlow, request_flow
from phasewise.request_flow.outcomes import (
    CacheHit,
    CacheMiss,
    Cancelled,
    Failed,
    Granted,
    Outcome,
    Prefilled,
    QuotaAnswered,
    Succeeded,
    TimedOut,
)
from phasewise.request_flow.steps import (
    Generate,
    LookUpCache,
    Prefill,
    Reject,
    ServeFound,
    Step,
    TakeQuota,
    Together,
    Wait,
)
from phasewise.request_flow.world import World, let_waiting_in

__all__ = [
    "MAX_ATTEMPTS",
    "CacheHit",
    "CacheMiss",
    "Cancelled",
    "Failed",
    "Generate",
    "Granted",
    "LookUpCache",
    "Outcome",
    "Prefill",
    "Prefilled",
    "QuotaAnswered",
    "Reject",
    "RequestFlow",
    "ServeFound",
    "Step",
    "Succeeded",
    "TakeQuota",
    "TimedOut",
    "Together",
    "Wait",
    "World",
    "expected_tokens",
    "let_waiting_in",
    "request_flow",
]

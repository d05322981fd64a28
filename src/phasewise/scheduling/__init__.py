"""The life of a request as one generator that yields steps and is sent their outcomes.

It does no IO and reads no clock. It decides when to admit, place, wait, retry and give up. A driver performs
the steps: the gateway over HTTP, the simulator in virtual time.

    flow = request_flow(request, world)
    step = next(flow)                      # LookUpCache(), Wait(ticket), Generate(worker), Reject(reason)
    step = flow.send(Failed(...))          # the next step, or StopIteration when the request has ended
"""

from phasewise.scheduling.admission import expected_tokens, over_quota
from phasewise.scheduling.flow import MAX_ATTEMPTS, RequestFlow, request_flow
from phasewise.scheduling.steps import (
    CacheHit,
    CacheMiss,
    Cancelled,
    CountAndLookUp,
    Failed,
    FollowIdentical,
    Generate,
    Granted,
    IdenticalUnderWay,
    LeaderLost,
    LookAgain,
    LookedUp,
    LookUpCache,
    NotShareable,
    Outcome,
    Prefill,
    Prefilled,
    QuotaAnswered,
    Reject,
    ServeStored,
    Step,
    Succeeded,
    TimedOut,
    Wait,
)
from phasewise.scheduling.world import World, let_waiting_in

__all__ = [
    "MAX_ATTEMPTS",
    "CacheHit",
    "CacheMiss",
    "Cancelled",
    "CountAndLookUp",
    "Failed",
    "FollowIdentical",
    "Generate",
    "Granted",
    "IdenticalUnderWay",
    "LeaderLost",
    "LookAgain",
    "LookUpCache",
    "LookedUp",
    "NotShareable",
    "Outcome",
    "Prefill",
    "Prefilled",
    "QuotaAnswered",
    "Reject",
    "RequestFlow",
    "ServeStored",
    "Step",
    "Succeeded",
    "TimedOut",
    "Wait",
    "World",
    "expected_tokens",
    "let_waiting_in",
    "over_quota",
    "request_flow",
]

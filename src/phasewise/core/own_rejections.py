"""Every reason for which the gateway itself ends a request: what it means, and what changes it.

Clients read the words of their own case in the reply; these are the operator's, for the log and the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind


class OwnRejection(NamedTuple):
    """What one reason means, what changes it and what that costs; settings by their keys in the file."""

    meaning: str
    fix: str
    price: str = "none"

    def __str__(self) -> str:
        return f"{self.meaning}; {self.fix}"


_MEMORY, _LOAD = "memory", "more load for the engines"
_APPLICATION = "a change in the application"
_LOGS = OwnRejection(
    "the engines that were tried failed", "find out why engines fail: read the end of their logs", "time"
)
_SEE_REPLY = "change what clients send: the reply says what is wrong"

OWN_REJECTIONS: Mapping[str, OwnRejection] = {
    RejectReason.NO_WORKER_FOR_MODEL: OwnRejection(
        "no engine serves the model that was asked for",
        "add an engine of that model to the gateway, or ask for a model that `GET /v1/models` lists",
        "an engine",
    ),
    RejectReason.NO_HEALTHY_WORKER: OwnRejection(
        "no engine of the model answered",
        "start the model's engines again (`phasewise status` says how they are), or add another engine of it",
        "an engine",
    ),
    RejectReason.REQUESTS_OVER_LIMIT: OwnRejection(
        "a key sent more requests than it may", "raise requests_per_minute in gateway.api_keys", _LOAD
    ),
    RejectReason.TOKENS_OVER_LIMIT: OwnRejection(
        "a key used more tokens than it may", "raise tokens_per_minute in gateway.api_keys", _LOAD
    ),
    RejectReason.CONCURRENCY_OVER_LIMIT: OwnRejection(
        "a key had more open requests than it may", "raise max_concurrent in gateway.api_keys", _LOAD
    ),
    RejectReason.LIMITS_UNAVAILABLE: OwnRejection(
        "the store of the keys' limits did not answer",
        "start gateway.redis again, or set gateway.redis.when_down to count_alone",
        "several gateways together allow more than the limits",
    ),
    RejectReason.QUEUE_FULL: OwnRejection(
        "as many requests waited for a slot as may wait",
        "raise gateway.queue.max_waiting, or slots of engines that can take more; or add an engine",
        "longer waits",
    ),
    RejectReason.QUEUE_TIMEOUT: OwnRejection(
        "no engine had a free slot in time",
        "raise max_wait_s in gateway.slo_classes, or slots of engines that can take more; or add an engine",
        "longer waits",
    ),
    RejectReason.RETRY_BUDGET_SPENT: _LOGS,
    RejectReason.ALL_ATTEMPTS_FAILED: _LOGS,
    RejectReason.ATTEMPTS_TIMED_OUT: OwnRejection(
        "no engine answered in time", "raise gateway.upstream.first_byte_s, or add an engine", "longer waits"
    ),
    RejectReason.NOT_RESUMABLE: _LOGS,
    RejectReason.NO_SAME_WEIGHTS: OwnRejection(
        "an answer broke off, and no other engine of the same weights was free",
        "add an engine of the same weights",
        "an engine",
    ),
    RejectReason.GATEWAY_FULL: OwnRejection(
        "the gateway could open no more connections", "raise its limit of open files (ulimit -n)"
    ),
    RejectReason.GATEWAY_STOPPED: OwnRejection(
        "the gateway stopped", "raise gateway.drain_s, if answers take longer", "it takes longer to stop"
    ),
    RejectionKind.BAD_REQUEST: OwnRejection(
        "the gateway does not accept such a request", _SEE_REPLY, _APPLICATION
    ),
    RejectionKind.UNAUTHENTICATED: OwnRejection(
        "it had no key that the gateway knows", "send a key whose hash is in gateway.api_keys", _APPLICATION
    ),
    RejectionKind.FORBIDDEN: OwnRejection(
        "the gateway does not allow it",
        "the reply names what would allow it: gateway.cors, gateway.trusted_hosts or a key",
        _APPLICATION,
    ),
    RejectionKind.NOT_FOUND: OwnRejection(
        "the gateway has nothing at this address", "check the path that clients ask for", _APPLICATION
    ),
    RejectionKind.METHOD_NOT_ALLOWED: OwnRejection(
        "the address takes another method", _SEE_REPLY, _APPLICATION
    ),
    RejectionKind.TOO_LARGE: OwnRejection(
        "a body was larger than one may be", "raise gateway.limits.body", _MEMORY
    ),
    RejectionKind.BODIES_FULL: OwnRejection(
        "a body waited too long for memory, or to be parsed after other large ones",
        "raise gateway.limits.bodies; if phasewise_body_bytes is far below it, raise gateway.processes",
        "memory, or a core",
    ),
    RejectionKind.BODY_TIMEOUT: OwnRejection(
        "a body did not come in time", "raise gateway.limits.body_s if clients are far away"
    ),
    RejectionKind.UNSUPPORTED_ENCODING: OwnRejection(
        "a body was compressed", "let clients send bodies as they are", _APPLICATION
    ),
    RejectionKind.HEAD_TOO_LARGE: OwnRejection(
        "the headers were larger than they may be", "raise gateway.limits.head", _MEMORY
    ),
    RejectionKind.HEAD_TIMEOUT: OwnRejection(
        "the headers did not come in time", "raise gateway.limits.head_s if clients are far away"
    ),
    RejectionKind.CACHE_UNAVAILABLE: OwnRejection(
        "the answer cache's store did not answer", "start gateway.cache.redis again"
    ),
    RejectionKind.OVERLOADED: OwnRejection(
        "the gateway's processor or memory was exhausted (phasewise_overload_stage)",
        "raise gateway.processes or gateway.limits.memory, or add a gateway",
        "a core, or memory",
    ),
    RejectionKind.BAD_CONFIG: OwnRejection(
        "the gateway's file cannot be used", "correct the file: the reply says where", "time"
    ),
    RejectionKind.QUARANTINED: OwnRejection(
        "engines died while they computed this prompt",
        "find out why: read the end of the engines' logs; gateway.quarantine_s is how long it is rejected",
        "time",
    ),
}

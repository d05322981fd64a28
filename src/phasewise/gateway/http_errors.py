"""The one table from what went wrong to HTTP: status, and an error body in OpenAI's shape.

Nothing else in the gateway knows which status an error has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.asgi import Client, Headers
from phasewise.model.decision import RejectReason

JSON: Headers = ((b"content-type", b"application/json"),)

LONGEST_HEEDED_S = 60.0
"""OpenAI's clients take a longer retry-after for none and come back within seconds, unless told not to."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """How one kind of failure looks over HTTP. `code` is the failure's own name."""

    status: int
    type: str
    headers: Headers = ()


# OpenAI's clients ask again after a 5xx unless told not to: what failed twice may be what kills workers.
_DO_NOT_RETRY: Headers = ((b"x-should-retry", b"false"),)
# What is still to come of the request would have to be read, or be taken for the next one.
_CLOSE: Headers = ((b"connection", b"close"),)

HTTP_ERRORS: dict[RejectReason | RefusalKind, HttpError] = {
    RejectReason.NO_WORKER_FOR_MODEL: HttpError(404, "not_found_error"),
    RejectReason.NO_HEALTHY_WORKER: HttpError(503, "service_unavailable_error"),
    RejectReason.REQUESTS_OVER_LIMIT: HttpError(429, "rate_limit_error"),
    RejectReason.TOKENS_OVER_LIMIT: HttpError(429, "rate_limit_error"),
    RejectReason.CONCURRENCY_OVER_LIMIT: HttpError(429, "rate_limit_error"),
    RejectReason.LIMITS_UNAVAILABLE: HttpError(503, "service_unavailable_error"),
    RejectReason.QUEUE_FULL: HttpError(503, "service_unavailable_error"),
    RejectReason.QUEUE_TIMEOUT: HttpError(503, "service_unavailable_error"),
    RejectReason.RETRY_BUDGET_SPENT: HttpError(503, "service_unavailable_error"),
    RejectReason.ALL_ATTEMPTS_FAILED: HttpError(503, "upstream_error", _DO_NOT_RETRY),
    RejectReason.ATTEMPTS_TIMED_OUT: HttpError(504, "upstream_error", _DO_NOT_RETRY),
    # Only ever told in a stream that has begun.
    RejectReason.NOT_RESUMABLE: HttpError(503, "upstream_error"),
    RejectReason.GATEWAY_FULL: HttpError(503, "service_unavailable_error"),
    RejectReason.GATEWAY_STOPPED: HttpError(503, "service_unavailable_error", _CLOSE),
    RefusalKind.BAD_REQUEST: HttpError(400, "invalid_request_error"),
    RefusalKind.UNAUTHENTICATED: HttpError(401, "authentication_error", ((b"www-authenticate", b"Bearer"),)),
    RefusalKind.FORBIDDEN: HttpError(403, "permission_error"),
    RefusalKind.NOT_FOUND: HttpError(404, "not_found_error"),
    RefusalKind.METHOD_NOT_ALLOWED: HttpError(405, "invalid_request_error"),
    RefusalKind.TOO_LARGE: HttpError(413, "invalid_request_error", _CLOSE),
    RefusalKind.BODY_TIMEOUT: HttpError(408, "invalid_request_error", _CLOSE),
    RefusalKind.HEAD_TOO_LARGE: HttpError(431, "invalid_request_error", _CLOSE),
    RefusalKind.HEAD_TIMEOUT: HttpError(408, "invalid_request_error", _CLOSE),
    RefusalKind.CACHE_UNAVAILABLE: HttpError(503, "service_unavailable_error"),
}

BREAKS_STREAMS = frozenset(
    {
        RejectReason.NO_HEALTHY_WORKER,
        RejectReason.QUEUE_TIMEOUT,
        RejectReason.RETRY_BUDGET_SPENT,
        RejectReason.ALL_ATTEMPTS_FAILED,
        RejectReason.ATTEMPTS_TIMED_OUT,
        RejectReason.NOT_RESUMABLE,
        RejectReason.GATEWAY_FULL,
        RejectReason.GATEWAY_STOPPED,
    }
)
"""Why an answer that has begun may end: a request that has no answer yet has more reasons."""


async def send_error(
    client: Client,
    kind: RejectReason | RefusalKind,
    message: str,
    *,
    param: str | None = None,
    headers: Headers = (),
    retry_after_s: float | None = None,
) -> None:
    """Answer with an error; the answer must not have been started."""
    error = HTTP_ERRORS[kind]
    body = error_body(message, error.type, code=kind, param=param)
    await client.respond(
        error.status, [*JSON, *error.headers, *_when_to_return(retry_after_s), *headers], body
    )


def _when_to_return(after_s: float | None) -> Headers:
    if after_s is None:
        return ()
    told: Headers = ((b"retry-after", b"%d" % max(1, math.ceil(after_s))),)
    return (*told, *_DO_NOT_RETRY) if after_s > LONGEST_HEEDED_S else told


async def send_refusal(client: Client, refusal: RequestRefused, headers: Headers = ()) -> None:
    """Answer with the reason why a request is not taken in."""
    await send_error(client, refusal.kind, str(refusal), param=refusal.param, headers=headers)


def stream_error_event(reason: RejectReason) -> bytes:
    """The event that ends a stream which broke after some of the answer had been sent."""
    who = "gateway stopped" if reason is RejectReason.GATEWAY_STOPPED else "worker broke off"
    body = error_body(
        f"the {who} in the middle of the answer; what came before is incomplete",
        HTTP_ERRORS[reason].type,
        code=stream_code(reason),
    )
    return b"data: " + body + b"\n\n"


def stream_code(reason: RejectReason) -> str:
    """The code of the event that ends a stream."""
    return f"stream_{reason}"


def error_body(message: str, error_type: str, *, code: str, param: str | None = None) -> bytes:
    """An error the way OpenAI's clients expect it."""
    return orjson.dumps({"error": {"message": message, "type": error_type, "param": param, "code": code}})

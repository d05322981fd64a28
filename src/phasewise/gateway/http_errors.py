"""Maps every failure to its HTTP status and an error body in OpenAI's format, or in Anthropic's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import orjson

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.gateway.server.client import Client, Headers

JSON: Headers = ((b"content-type", b"application/json"),)

LONGEST_HEEDED_S = 60.0
"""OpenAI's clients ignore a longer retry-after and retry within seconds, unless x-should-retry is false."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """How one kind of failure looks over HTTP. `code` is the failure's own name."""

    status: int
    type: str
    headers: Headers = ()


# OpenAI's clients retry after a 5xx unless this forbids it. A request that failed twice may crash workers.
_DO_NOT_RETRY: Headers = ((b"x-should-retry", b"false"),)
# The rest of the request would have to be read, or would be parsed as the next one.
_CLOSE: Headers = ((b"connection", b"close"),)

HTTP_ERRORS: dict[RejectReason | RejectionKind, HttpError] = {
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
    # Only sent in a stream that has begun.
    RejectReason.NOT_RESUMABLE: HttpError(503, "upstream_error"),
    RejectReason.NO_SAME_WEIGHTS: HttpError(503, "upstream_error"),
    RejectReason.GATEWAY_FULL: HttpError(503, "service_unavailable_error"),
    RejectReason.GATEWAY_STOPPED: HttpError(503, "service_unavailable_error", _CLOSE),
    RejectionKind.BAD_REQUEST: HttpError(400, "invalid_request_error"),
    RejectionKind.UNAUTHENTICATED: HttpError(
        401, "authentication_error", ((b"www-authenticate", b"Bearer"),)
    ),
    RejectionKind.FORBIDDEN: HttpError(403, "permission_error"),
    RejectionKind.NOT_FOUND: HttpError(404, "not_found_error"),
    RejectionKind.METHOD_NOT_ALLOWED: HttpError(405, "invalid_request_error"),
    RejectionKind.TOO_LARGE: HttpError(413, "invalid_request_error", _CLOSE),
    RejectionKind.BODIES_FULL: HttpError(503, "service_unavailable_error", ((b"retry-after", b"1"), *_CLOSE)),
    RejectionKind.BODY_TIMEOUT: HttpError(408, "invalid_request_error", _CLOSE),
    RejectionKind.UNSUPPORTED_ENCODING: HttpError(415, "invalid_request_error", _CLOSE),
    RejectionKind.HEAD_TOO_LARGE: HttpError(431, "invalid_request_error", _CLOSE),
    RejectionKind.HEAD_TIMEOUT: HttpError(408, "invalid_request_error", _CLOSE),
    RejectionKind.QUARANTINED: HttpError(422, "invalid_request_error"),
    RejectionKind.BAD_CONFIG: HttpError(409, "invalid_request_error"),
    RejectionKind.CACHE_UNAVAILABLE: HttpError(503, "service_unavailable_error"),
    RejectionKind.OVERLOADED: HttpError(503, "service_unavailable_error", ((b"retry-after", b"1"), *_CLOSE)),
}

_ANTHROPIC_TYPES = {"service_unavailable_error": "overloaded_error", "upstream_error": "api_error"}
"""The names of Anthropic's that differ from ours."""

BREAKS_STREAMS = frozenset(
    {
        RejectReason.NO_HEALTHY_WORKER,
        RejectReason.QUEUE_TIMEOUT,
        RejectReason.RETRY_BUDGET_SPENT,
        RejectReason.ALL_ATTEMPTS_FAILED,
        RejectReason.ATTEMPTS_TIMED_OUT,
        RejectReason.NOT_RESUMABLE,
        RejectReason.NO_SAME_WEIGHTS,
        RejectReason.GATEWAY_FULL,
        RejectReason.GATEWAY_STOPPED,
    }
)
"""The reasons for which an answer that has begun may break off."""


async def send_error(
    client: Client,
    kind: RejectReason | RejectionKind,
    message: str,
    *,
    param: str | None = None,
    headers: Headers = (),
    retry_after_s: float | None = None,
) -> None:
    """Answer with an error. The response must not have been started."""
    error = HTTP_ERRORS[kind]
    body = error_body(message, error.type, code=kind, param=param, anthropic=client.is_anthropic)
    await client.respond(error.status, [*error_headers(kind, retry_after_s), *headers], body)


def error_headers(kind: RejectReason | RejectionKind, retry_after_s: float | None = None) -> Headers:
    """The headers of an error response."""
    return (*JSON, *HTTP_ERRORS[kind].headers, *_when_to_return(retry_after_s))


def _when_to_return(after_s: float | None) -> Headers:
    if after_s is None:
        return ()
    header: Headers = ((b"retry-after", b"%d" % max(1, math.ceil(after_s))),)
    return (*header, *_DO_NOT_RETRY) if after_s > LONGEST_HEEDED_S else header


async def send_rejection(client: Client, rejection: RequestRejected, headers: Headers = ()) -> None:
    """Answer with the reason of a rejection."""
    await send_error(client, rejection.kind, str(rejection), param=rejection.param, headers=headers)


def stream_error_event(reason: RejectReason, *, typed: bool = False, anthropic: bool = False) -> bytes:
    """The event that ends a stream that broke off after some of the answer was sent.

    It names its type if the stream's events are `typed`.
    """
    who = "gateway stopped" if reason is RejectReason.GATEWAY_STOPPED else "worker broke off"
    why = ", and no engine of the same weights is free" if reason is RejectReason.NO_SAME_WEIGHTS else ""
    body = error_body(
        f"the {who} in the middle of the answer{why}; what came before is incomplete",
        HTTP_ERRORS[reason].type,
        code=stream_code(reason),
        anthropic=anthropic,
    )
    return (b"event: error\ndata: " if typed else b"data: ") + body + b"\n\n"


def stream_code(reason: RejectReason) -> str:
    """The code of the event that ends a stream."""
    return f"stream_{reason}"


def error_body(
    message: str, error_type: str, *, code: str, param: str | None = None, anthropic: bool = False
) -> bytes:
    """An error body as OpenAI's clients expect it, or Anthropic's; these ignore `param` and `code`."""
    if anthropic:
        error_type = _ANTHROPIC_TYPES.get(error_type, error_type)
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return orjson.dumps({"type": "error", "error": error} if anthropic else {"error": error})


def anthropic_rejection(status: int, body: bytes) -> bytes:
    """An engine's own rejection in Anthropic's shape, with its message."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    error = said.get("error", said) if isinstance(said, dict) else None
    message = (error.get("message") or error.get("detail")) if isinstance(error, dict) else None
    kind = {404: "not_found_error", 413: "request_too_large"}.get(status, "invalid_request_error")
    said = message if isinstance(message, str) else "the engine rejected the request"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": said}})

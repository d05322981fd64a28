"""Every reason to say no has a status and OpenAI's shape."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.gateway.http_errors import HTTP_ERRORS, send_error, send_rejection, stream_error_event
from phasewise.gateway.server.client import Client


async def answer_of(send_it, *arguments, **options):
    sent = []

    direct = SimpleNamespace(paused=False, respond=lambda *answer: sent.append(answer))
    await send_it(Client(direct), *arguments, **options)
    ((status, headers, body),) = sent
    return status, dict(headers), orjson.loads(body)


def test_every_reason_is_in_the_table():
    assert set(HTTP_ERRORS) == {*RejectReason, *RejectionKind}


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RejectReason.NO_WORKER_FOR_MODEL, 404),
        (RejectReason.NO_HEALTHY_WORKER, 503),
        (RejectReason.RETRY_BUDGET_SPENT, 503),
        (RejectReason.ALL_ATTEMPTS_FAILED, 503),
        (RejectReason.ATTEMPTS_TIMED_OUT, 504),
        (RejectReason.TOKENS_OVER_LIMIT, 429),
        (RejectReason.QUEUE_FULL, 503),
        (RejectReason.GATEWAY_FULL, 503),
        (RejectionKind.BAD_REQUEST, 400),
        (RejectionKind.UNAUTHENTICATED, 401),
        (RejectionKind.TOO_LARGE, 413),
        (RejectionKind.BODY_TIMEOUT, 408),
    ],
)
async def test_an_error_has_openais_shape(reason, status):
    got, headers, body = await answer_of(send_error, reason, "words")
    assert got == status
    assert headers[b"content-type"] == b"application/json"
    assert body["error"]["message"] == "words"
    assert body["error"]["code"] == reason
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_client_gets_a_retry_time():
    _, headers, _ = await answer_of(send_error, RejectReason.QUEUE_FULL, "words", retry_after_s=1.2)
    assert headers[b"retry-after"] == b"2"
    assert b"x-should-retry" not in headers


async def test_a_client_that_would_not_wait_so_long_must_not_retry_by_itself():
    _, headers, _ = await answer_of(send_error, RejectReason.QUEUE_FULL, "words", retry_after_s=60.1)
    assert headers[b"retry-after"] == b"61"
    assert headers[b"x-should-retry"] == b"false"


async def test_a_rejection_names_its_field_and_its_hint():
    rejection = RequestRejected(RejectionKind.BAD_REQUEST, "no", param="top_k", hint="leave it out")
    _, _, body = await answer_of(send_rejection, rejection)
    assert body["error"]["param"] == "top_k"
    assert body["error"]["message"] == "no. hint: leave it out"


def test_a_broken_stream_ends_with_an_error_event():
    event = stream_error_event(RejectReason.NOT_RESUMABLE)
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    assert orjson.loads(event[6:])["error"]["code"] == "stream_not_resumable"

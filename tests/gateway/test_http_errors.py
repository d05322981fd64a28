"""Every reason to say no has a status and OpenAI's shape."""

from __future__ import annotations

import orjson
import pytest

from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.asgi import Client
from phasewise.gateway.http_errors import HTTP_ERRORS, send_error, send_refusal, stream_error_event
from phasewise.model.decision import RejectReason


async def answer_of(send_it, *arguments, **options):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("nothing is read while answering")

    await send_it(Client(receive, send), *arguments, **options)
    return sent[0]["status"], dict(sent[0]["headers"]), orjson.loads(sent[1]["body"])


def test_every_reason_is_in_the_table():
    assert set(HTTP_ERRORS) == {*RejectReason, *RefusalKind}


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
        (RefusalKind.BAD_REQUEST, 400),
        (RefusalKind.UNAUTHENTICATED, 401),
        (RefusalKind.TOO_LARGE, 413),
        (RefusalKind.BODY_TIMEOUT, 408),
    ],
)
async def test_an_error_has_openais_shape(reason, status):
    got, headers, body = await answer_of(send_error, reason, "words")
    assert got == status
    assert headers[b"content-type"] == b"application/json"
    assert body["error"]["message"] == "words"
    assert body["error"]["code"] == reason
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_client_is_told_when_to_come_back():
    _, headers, _ = await answer_of(send_error, RejectReason.QUEUE_FULL, "words", retry_after_s=1.2)
    assert headers[b"retry-after"] == b"2"
    assert b"x-should-retry" not in headers


async def test_a_client_that_would_not_wait_so_long_is_told_not_to_come_back_by_itself():
    _, headers, _ = await answer_of(send_error, RejectReason.QUEUE_FULL, "words", retry_after_s=60.1)
    assert headers[b"retry-after"] == b"61"
    assert headers[b"x-should-retry"] == b"false"


async def test_a_refusal_names_its_field_and_its_hint():
    refusal = RequestRefused(RefusalKind.BAD_REQUEST, "no", param="top_k", hint="leave it out")
    _, _, body = await answer_of(send_refusal, refusal)
    assert body["error"]["param"] == "top_k"
    assert body["error"]["message"] == "no. hint: leave it out"


def test_a_broken_stream_ends_with_an_error_event():
    event = stream_error_event(RejectReason.NOT_RESUMABLE)
    assert event.startswith(b"data: {")
    assert event.endswith(b"\n\n")
    assert orjson.loads(event[6:])["error"]["code"] == "stream_not_resumable"

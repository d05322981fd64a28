"""How long a ticket is good for, and how long a decode worker is waited for."""

from __future__ import annotations

import asyncio

import pytest

from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.kv_transfer import KvTicket, KvTransferOutcome
from phasewise.core.timeline import EngineAccount
from phasewise.core.worker import WorkerRef
from phasewise.gateway.kv_transfer.tickets import KvTransfers
from phasewise.gateway.upstream.response import Answer
from tests.builders import make_request

P0 = WorkerRef("p0", "1")
TICKET = KvTicket(P0, b"{}", 100, 0.0)


class Bounds:
    """KV transfers with short limits, and what was counted of them."""

    def __init__(self, timeout_s=0.05, lease_s=30.0):
        self.counted = []
        self.source_answers = True
        self.kv_transfers = KvTransfers(
            timeout_s, lease_s, lambda _ref: self.source_answers, self.counted.append
        )


def make_answer(**phases_s):
    answer = Answer()
    answer.account = EngineAccount(prompt_tokens=120, **phases_s)
    return answer


def test_a_ticket_is_good_for_half_the_lease_from_the_end_of_the_prefill():
    """The reply lay unread for 7 s: the engine had let go of the prompt long before."""
    answer = make_answer(queue_s=1.0, prefill_s=2.0)
    assert Bounds().kv_transfers.good_until_s(100.0, 110.0, answer) == pytest.approx(103.0 + 15.0)


def test_an_engine_that_reports_no_times_is_taken_to_have_kept_the_kv_since_its_reply():
    assert Bounds().kv_transfers.good_until_s(100.0, 110.0, make_answer()) == pytest.approx(125.0)


def test_a_ticket_is_never_good_for_longer_than_what_was_seen():
    answer = make_answer(queue_s=50.0, prefill_s=50.0)
    assert Bounds().kv_transfers.good_until_s(100.0, 110.0, answer) == pytest.approx(125.0)


def test_a_ticket_says_whose_kv_it_is_and_how_much():
    reply = b'{"kv_transfer_params":{"remote_engine_id":"e"}}'
    ticket = Bounds().kv_transfers.ticket(P0, reply, make_answer(), make_request(), 5.0)
    assert ticket == KvTicket(P0, b'{"remote_engine_id":"e"}', 120, 5.0)


def test_a_reply_without_kv_is_a_failed_kv_transfer_that_says_what_to_do():
    bounds = Bounds()
    with pytest.raises(UpstreamError) as failure:
        bounds.kv_transfers.ticket(P0, b'{"kv_transfer_params":null}', make_answer(), make_request(), 5.0)
    assert failure.value.kind is FailureKind.KV_TRANSFER
    assert "connector" in failure.value.hint
    assert bounds.counted == [KvTransferOutcome.NO_KV]


async def test_a_stream_is_given_up_when_its_first_content_does_not_come():
    bounds = Bounds()
    with pytest.raises(UpstreamError) as failure:
        async with bounds.kv_transfers.bounded(TICKET, streamed=True):
            await asyncio.sleep(30)
    assert failure.value.kind is FailureKind.KV_TRANSFER
    assert bounds.counted == [KvTransferOutcome.TIMED_OUT]


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_has_begun_has_all_the_time_in_the_world(streamed):
    bounds = Bounds()
    async with bounds.kv_transfers.bounded(TICKET, streamed=streamed) as begun:
        begun()
        bounds.source_answers = False
        await asyncio.sleep(0.2)
    assert bounds.counted == [KvTransferOutcome.DONE]


async def test_a_plain_reply_is_given_up_if_its_source_does_not_answer_in_time():
    bounds = Bounds()
    bounds.source_answers = False
    with pytest.raises(UpstreamError) as failure:
        async with bounds.kv_transfers.bounded(TICKET, streamed=False):
            await asyncio.sleep(30)
    assert failure.value.kind is FailureKind.KV_TRANSFER
    assert bounds.counted == [KvTransferOutcome.TIMED_OUT]


async def test_a_plain_reply_is_not_given_up_for_a_source_that_goes_away_later():
    """By then the KV has long been fetched, and the answer is being written."""
    bounds = Bounds()
    async with bounds.kv_transfers.bounded(TICKET, streamed=False) as begun:
        await asyncio.sleep(0.2)
        bounds.source_answers = False
        await asyncio.sleep(0.2)
        begun()
    assert bounds.counted == [KvTransferOutcome.DONE]


@pytest.mark.parametrize(
    ("kind", "becomes", "counted"),
    [
        (FailureKind.SERVER_ERROR, FailureKind.KV_TRANSFER, KvTransferOutcome.REJECTED),
        (FailureKind.CLOSED, FailureKind.CLOSED, KvTransferOutcome.BROKEN),
        (FailureKind.CONNECTION_REFUSED, FailureKind.CONNECTION_REFUSED, KvTransferOutcome.BROKEN),
        (FailureKind.TIMED_OUT, FailureKind.KV_TRANSFER, KvTransferOutcome.TIMED_OUT),
        (FailureKind.TOO_LATE, FailureKind.TOO_LATE, KvTransferOutcome.TOO_LATE),
    ],
)
async def test_an_error_before_the_first_content_is_the_pairs_and_a_broken_conversation_the_workers(
    kind, becomes, counted
):
    bounds = Bounds()
    with pytest.raises(UpstreamError) as failure:
        async with bounds.kv_transfers.bounded(TICKET, streamed=True):
            raise UpstreamError(kind, "the worker answered with HTTP 500")
    assert failure.value.kind is becomes
    assert bounds.counted == [counted]


async def test_an_error_after_the_first_content_is_the_workers_own():
    bounds = Bounds()

    async def break_in_mid_answer():
        async with bounds.kv_transfers.bounded(TICKET, streamed=True) as begun:
            begun()
            raise UpstreamError(FailureKind.SERVER_ERROR, "the engine reported an error in its stream")

    with pytest.raises(UpstreamError) as failure:
        await break_in_mid_answer()
    assert failure.value.kind is FailureKind.SERVER_ERROR
    assert bounds.counted == [KvTransferOutcome.DONE]


async def test_a_client_that_leaves_is_counted_as_nothing():
    bounds = Bounds(timeout_s=30.0)

    async def wait():
        async with bounds.kv_transfers.bounded(TICKET, streamed=True):
            await asyncio.sleep(30)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert bounds.counted == []

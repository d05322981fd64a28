"""The users of benchmarks/overload.py: who counts as served well, and who comes back when."""

from __future__ import annotations

from benchmarks.stress.arrivals import MOST_RETRIES, Demand, Offered, User, keep_full, offer
from benchmarks.stress.streams import Answer
from phasewise.core.slo import Slo
from phasewise.fake_engine.fleet import running_engines
from tests.gateway.harness import listening

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
DEMAND = Demand("fake-model", prompt_tokens=(4, 8), output_tokens=(2, 4))
REJECTION = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\ncontent-length: %d\r\n\r\n%b" % (
    len(body := b'{"error": {"code": "queue_full"}}'),
    body,
)


def make_answer(first_s=0.5, last_s=0.6, chunks=2, **fields):
    return Answer(
        sent_s=0.0, status=200, first_s=first_s, last_s=last_s, chunks=chunks,
        finish_reason="length", done=True, **fields,
    )  # fmt: skip


def test_a_request_is_served_well_if_all_of_it_came_within_both_bounds():
    assert User(0.0, [make_answer()]).is_good(SLO)
    assert User(0.0, [make_answer(chunks=1)]).is_good(SLO)
    assert not User(0.0, []).is_good(SLO)
    assert not User(0.0, [make_answer(first_s=1.1, last_s=1.2)]).is_good(SLO)
    assert not User(0.0, [make_answer(last_s=0.7)]).is_good(SLO)
    assert not User(0.0, [make_answer(error_event="stream_not_resumable")]).is_good(SLO)
    assert not User(0.0, [Answer(sent_s=0.0, status=503, code="queue_full")]).is_good(SLO)


def test_time_counts_from_when_a_request_was_first_wanted():
    rejected, served = Answer(sent_s=0.0, status=503), make_answer(first_s=2.2, last_s=2.3)
    assert not User(0.0, [rejected, served]).is_good(SLO)
    assert User(1.9, [served]).is_good(SLO)


def test_goodput_is_over_all_who_came_after_the_lead_in():
    early, good, never = User(0.0, [make_answer()]), User(5.0, [make_answer(5.5, 5.6)]), User(6.0)
    run = Offered([early, good, never], counted_from_s=5.0, duration_s=2.0)
    assert run.goodput_per_s(SLO) == run.served_per_s() == 0.5


async def test_rejected_users_come_back_as_often_as_they_may_or_not_at_all():
    async def reject(head, body, writer):
        writer.write(REJECTION)

    async with listening(reject) as worker:
        gave_up = await offer(worker.url, DEMAND, 40.0, 0.5, seed=1, lead_in_s=0.0)
        persisted = await offer(worker.url, DEMAND, 40.0, 0.5, seed=1, lead_in_s=0.0, retries=True)
    assert [len(user.answers) for user in gave_up.users] == [1] * len(gave_up.users)
    # Whoever came last may have been let go at the end.
    assert max(len(user.answers) for user in persisted.users) == 1 + MOST_RETRIES
    assert {(answer.status, answer.code) for answer in persisted.rejections} == {(503, "queue_full")}
    assert len(persisted.rejections) > 2 * len(gave_up.rejections)


async def test_an_engine_with_room_serves_everyone():
    async with running_engines(1) as (engine,):
        run = await offer(engine.base_url, DEMAND, 20.0, 1.0, seed=2, lead_in_s=0.2)
        assert all(user.answers[-1].whole for user in run.users)
        assert not run.broken
        assert await keep_full(engine.base_url, DEMAND, clients=2, duration_s=1.0, seed=3) > 0

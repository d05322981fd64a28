"""The slowest of the kept timelines are found without holding up anybody else."""

from __future__ import annotations

import orjson
import pytest

from phasewise.core.timeline_record import encode
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.records.timeline_store import RecordLine, slowest
from tests.builders import make_timeline
from tests.gateway.harness import ADMIN, eventually, running_gateway


def line(request_id, *times_s, **fields):
    return RecordLine(encode(make_timeline(times_s, request_id=request_id, **fields)))


LINES = [
    line("late", 3.0, 3.1, 3.2),
    line("slow", 0.1, 2.1, 4.1),
    line("quick", 0.1, 0.2, 0.3),
    line("stalled", 0.1, 0.2, 0.3, 0.4, 0.5, 2.5),
    line("none"),
    line("vector", streamed=False, generates=False, ended_s=9.0),
]


@pytest.mark.parametrize(
    ("measure", "ids"),
    [("tpot", ["slow", "stalled"]), ("stall", ["stalled"]), ("e2e", ["slow", "late"])],
)
async def test_the_slowest_come_first_by_the_time_asked_for(measure, ids):
    assert [orjson.loads(line.text)["id"] for line in await slowest(LINES, measure, 2)] == ids


async def test_the_latest_first_token_comes_first():
    assert [orjson.loads(line.text)["id"] for line in await slowest(LINES, "ttft", 1)] == ["late"]


async def test_requests_without_such_a_time_are_left_out():
    assert len(await slowest(LINES, "tpot", 10)) == 4


async def test_it_is_asked_for_over_http():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        for length in (2, 40, 3):
            assert (await gateway.chat(max_tokens=length, stream=True, ignore_eos=True)).status == 200
        await eventually(lambda: len(gateway.app.gateway.timelines) == 3)
        reply = await gateway.fetch("GET", "/phasewise/v1/requests?slowest=e2e&limit=1", headers=ADMIN)
        assert dict(reply.headers)[b"x-phasewise-looked-at"] == b"3"
        (record,) = map(orjson.loads, reply.body.splitlines())
        assert record["out"] == 40
        wrong = await gateway.fetch("GET", "/phasewise/v1/requests?slowest=all", headers=ADMIN)
        assert wrong.status == 400
        assert "ttft, tpot, stall, e2e" in orjson.loads(wrong.body)["error"]["message"]
        assert (await gateway.fetch("GET", "/phasewise/v1/requests?slowest=e2e")).status == 401


async def test_a_tenant_does_not_go_with_a_place_to_read_on_from():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        wrong = await gateway.fetch("GET", "/phasewise/v1/requests?tenant=a&after=0", headers=ADMIN)
        assert wrong.status == 400
        assert orjson.loads(wrong.body)["error"]["param"] == "tenant"

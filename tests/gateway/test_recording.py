"""Every record of requests gets every request, whatever becomes of the others."""

from __future__ import annotations

from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.records.timeline_store import TimelineStore
from tests.gateway.harness import eventually, running_gateway


async def test_a_record_that_fails_keeps_the_request_from_no_other(monkeypatch, caplog):
    def fail(store, timeline):
        raise ValueError("no space")

    monkeypatch.setattr(TimelineStore, "record", fail)
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert (await gateway.chat()).status == 200

        async def counted():
            return b'outcome="succeeded"' in (await gateway.fetch("GET", "/metrics")).body

        await eventually(counted)
    assert [it.message for it in caplog.records] == ["a request is missing in one of its records"]

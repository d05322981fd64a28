"""The log names what rejects requests and which setting changes it, in few lines."""

from __future__ import annotations

import asyncio

import pytest

from phasewise.core.errors import RejectionKind
from phasewise.core.timeline import Outcome
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway.records import rejection_log
from phasewise.gateway.records.rejection_log import RejectionLog
from tests.builders import make_timeline
from tests.gateway.harness import eventually, running_gateway, worker_for


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("rejected")]


def rejected(tenant="acme", reason="too_large"):
    return make_timeline((), outcome=Outcome.REJECTED, reason=reason, tenant=tenant)


async def test_a_kind_and_tenant_have_one_line_when_their_time_is_over(caplog):
    metrics = []
    log = RejectionLog(metrics.append, every_s=0.05)
    for _ in range(173):
        log.record(rejected())
    log.record(rejected(tenant="other"))
    log.count(RejectionKind.UNAUTHENTICATED)
    assert metrics == [RejectionKind.UNAUTHENTICATED]
    assert lines(caplog) == []
    await eventually(lambda: lines(caplog))
    assert lines(caplog)[0] == (
        "rejected 173 requests of tenant acme in the last 0.05 s: too_large, "
        "a body was larger than one may be. hint: raise gateway.limits.body"
    )
    assert len(lines(caplog)) == 3
    assert any(line.startswith("rejected 1 request in the last 0.05 s: unauth") for line in lines(caplog))
    await asyncio.sleep(0.1)
    assert len(lines(caplog)) == 3, "nothing more was rejected"
    log.record(rejected())
    await eventually(lambda: len(lines(caplog)) == 4)


async def test_what_an_engine_rejects_and_what_is_served_is_not_named(caplog):
    log = RejectionLog([].append)
    log.record(rejected(reason="engine_4xx"))
    log.record(make_timeline())
    log.write()
    assert lines(caplog) == []


async def test_many_tenants_share_lines(caplog):
    log = RejectionLog([].append)
    for number in range(1_000):
        for reason in ("queue_full", "queue_timeout"):
            log.record(rejected(f"tenant-{number}", reason))
    log.write()
    assert len(lines(caplog)) == rejection_log.MOST_LINES + 2
    assert sum(int(line.split()[1]) for line in lines(caplog)) == 2_000


@pytest.mark.parametrize("stops", [False, True])
async def test_a_gateway_logs_rejections_of_every_stage_without_words_of_their_clients(
    caplog, monkeypatch, stops
):
    monkeypatch.setattr(rejection_log.RejectionLog.__init__, "__defaults__", (60.0 if stops else 0.2,))
    async with running_engines(1) as (engine,), running_gateway([worker_for(engine)]) as gateway:
        await gateway.fetch("POST", "/v1/chat/completions", b"{SECRET")
        await gateway.fetch("GET", "/SECRET")
        await gateway.fetch("GET", "/health", headers=[(b"x-secret", b"s" * 40_000)])
        await gateway.chat(model="SECRET")
        if not stops:
            await eventually(lambda: lines(caplog))
    found = "\n".join(lines(caplog))
    for kind in ("bad_request", "not_found", "head_too_large", "no_worker_for_model"):
        assert f" {kind}, " in found
    assert "of tenant default" in found
    assert "SECRET" not in found

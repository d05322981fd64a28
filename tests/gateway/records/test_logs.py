"""What is logged, in which form, and what never is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time

import orjson
import pytest

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import RejectionKind, UpstreamError
from phasewise.core.timeline import Outcome
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.records import logs
from phasewise.gateway.records.logs import LineFormatter, LineWriter, RejectionLog, request_fields
from tests.builders import make_timeline
from tests.gateway.gateway_process import running_process
from tests.gateway.harness import chat_body, eventually, running_gateway, worker_for

SECRET = "xyzzy"
KEY = f"pw-{SECRET}-key"


def settings(form):
    return {
        "log": {"format": form, "requests": True},
        "api_keys": [{"sha256": key_sha256(KEY), "tenant": "acme"}],
        "admin_key_sha256": key_sha256(f"admin-{SECRET}"),
    }


async def say_secrets_everywhere(client, engine):
    """Requests of every kind: served, rejected, failed in the engine, and not HTTP at all."""
    good, bad = ((b"authorization", f"Bearer {key}".encode()) for key in (KEY, f"wrong-{SECRET}"))
    named = (b"x-request-id", SECRET.encode())
    body = chat_body(f"my {SECRET} is safe")
    bodies = [
        body,
        {**body, "stream": True},
        {**body, "model": SECRET},
        {**body, SECRET: SECRET},
        {**body, "n": SECRET},
        {**body, "max_tokens": SECRET},
        {**body, "chat_template_kwargs": {"tokenize": SECRET}},
        [SECRET],
    ]
    path = f"/v1/chat/completions?key={SECRET}"
    for headers in ([good, named], [bad, named]):
        for each in bodies:
            await client.fetch("POST", path, headers=headers, body=orjson.dumps(each))
    await client.fetch("POST", path, headers=[good], body=f'{{"{SECRET}'.encode())
    await client.fetch("GET", f"/phasewise/v1/requests?after={SECRET}", headers=[bad])
    await client.fetch("GET", f"/{SECRET}")
    engine.inject("error")
    await client.fetch("POST", path, headers=[good], body=orjson.dumps(body))
    with contextlib.suppress(UpstreamError):
        await client.fetch("GET", "/health", headers=[(b"transfer-encoding", SECRET.encode())])


@pytest.mark.parametrize("form", ["text", "json"])
async def test_every_request_has_a_line_and_no_line_has_a_secret(tmp_path, capfd, form):
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, **settings(form)) as gateway,
    ):
        await say_secrets_everywhere(gateway.client, engine)
        gateway.process.terminate()
        _, errors = await gateway.ended()
    lines = errors.splitlines()
    requests = [line for line in lines if "request ended" in line]
    assert SECRET not in errors + capfd.readouterr().out
    # Three served, one unknown model, one the engine rejected, one it failed, four that the gateway rejected;
    # none of those without a known key.
    assert len(requests) == 10
    assert sum("bad_request" in line for line in requests) == 4
    if form == "json":
        reported = [orjson.loads(line) for line in lines]
        served = next(it for it in reported if it.get("outcome") == "succeeded")
        assert served["tenant"] == "acme"
        assert served["worker"] == "w0"
        assert served["output_tokens"] > 0
        assert {it.get("reason") for it in reported} >= {"no_worker_for_model", "engine_4xx"}
    else:
        assert any("outcome=succeeded" in line and "tenant=acme" in line for line in requests)


def record_of(error=None, message="words"):
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("phasewise.gateway", logging.ERROR, __file__, 1, message, (), exc_info)


def failed():
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        return error


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_error_is_logged_by_its_kind_and_place_and_not_by_its_words(form):
    line = LineFormatter(form).format(record_of(failed()))
    assert "KeyError at " in line
    assert "in failed" in line
    assert SECRET not in line


@pytest.mark.parametrize("form", ["text", "json"])
async def test_an_error_that_no_task_awaited_is_logged_without_its_words(form, caplog):
    async def fail():
        raise failed()

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    (record,) = [it for it in caplog.records if it.name == "asyncio"]
    assert SECRET in record.getMessage()
    line = LineFormatter(form).format(record)
    assert "Task exception was never retrieved" in line
    assert "KeyError" in line
    assert SECRET not in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_is_one_line_whatever_it_holds(form):
    assert "\n" not in LineFormatter(form).format(record_of(message="one\ntwo\r\nthree"))


def test_unknown_fields_of_a_request_are_left_out():
    timeline = make_timeline((), outcome=Outcome.REJECTED, attempts=(), prompt_tokens=None)
    fields = request_fields(timeline, {"m"})
    assert "ttft_ms" not in fields
    assert "worker" not in fields
    assert fields["attempts"] == 0


def test_what_a_request_had_of_the_cache_stands_in_its_line():
    note = CacheNote(CacheResult.HIT_EXACT)
    assert request_fields(make_timeline(cache=note), {"m"})["cache"] == "hit_exact"
    assert "cache" not in request_fields(make_timeline(), {"m"})


def test_requests_are_not_logged_unless_that_is_wanted():
    assert GatewayConfig().log.requests is False


def lines_of(writer, count):
    for number in range(count):
        writer.emit(logging.LogRecord("phasewise", logging.INFO, "", 0, f"line {number}", None, None))


def test_lines_arrive_whole_and_in_order():
    reading, writing = os.pipe()
    writer = LineWriter(writing)
    lines_of(writer, 500)
    writer.flush()
    assert os.read(reading, 1 << 16).splitlines() == [b"line %d" % number for number in range(500)]
    os.close(reading)
    os.close(writing)


def test_a_log_that_nobody_reads_never_blocks_and_counts_what_it_drops():
    reading, writing = os.pipe()
    writer = LineWriter(writing, most_kept=100)
    began_s = time.monotonic()
    lines_of(writer, 20_000)
    writer.flush()
    assert time.monotonic() - began_s < 20.0
    assert writer.dropped > 10_000
    os.close(reading)
    os.close(writing)


async def test_a_gateway_whose_log_nobody_reads_goes_on_serving_and_ends(tmp_path):
    """A pipe holds 64 KiB: some 350 lines."""
    reading, writing = os.pipe()
    async with (
        running_engines(1) as (engine,),
        running_process(tmp_path, engine, stderr=writing, log={"requests": True}) as gateway,
    ):
        os.close(writing)
        body = orjson.dumps(chat_body("hi"))
        for _ in range(600):
            assert (await gateway.client.fetch("POST", "/v1/chat/completions", body=body)).status == 200
        metrics = (await gateway.client.fetch("GET", "/metrics")).body.decode()
        gateway.process.terminate()
        code = await asyncio.wait_for(gateway.process.wait(), 60.0)
    os.close(reading)
    assert code == 0
    assert "phasewise_log_lines_dropped_total 0" in metrics, "within bounds, they wait in memory"


# --- What is rejected: few lines, which name the setting that changes it.


def rejections(caplog):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("rejected")]


def rejected(tenant="acme", reason="too_large"):
    return make_timeline((), outcome=Outcome.REJECTED, reason=reason, tenant=tenant)


async def test_a_kind_and_tenant_have_one_line_when_their_time_is_over(caplog, monkeypatch):
    monkeypatch.setattr(logs, "REJECTIONS_EVERY_S", 0.05)
    metrics = []
    log = RejectionLog(metrics.append)
    for _ in range(173):
        log.record(rejected())
    log.record(rejected(tenant="other"))
    log.count(RejectionKind.UNAUTHENTICATED)
    assert metrics == [RejectionKind.UNAUTHENTICATED]
    assert rejections(caplog) == []
    await eventually(lambda: rejections(caplog))
    assert rejections(caplog)[0] == (
        "rejected 173 requests of tenant acme in the last 0.05 s: too_large, "
        "a body was larger than one may be. hint: raise gateway.limits.body"
    )
    assert len(rejections(caplog)) == 3
    assert any(
        line.startswith("rejected 1 request in the last 0.05 s: unauth") for line in rejections(caplog)
    )
    await asyncio.sleep(0.1)
    assert len(rejections(caplog)) == 3, "nothing more was rejected"
    log.record(rejected())
    await eventually(lambda: len(rejections(caplog)) == 4)


async def test_what_an_engine_rejects_and_what_is_served_is_not_named(caplog):
    log = RejectionLog([].append)
    log.record(rejected(reason="engine_4xx"))
    log.record(make_timeline())
    log.write()
    assert rejections(caplog) == []


async def test_many_tenants_share_rejections(caplog):
    log = RejectionLog([].append)
    for number in range(1_000):
        for reason in ("queue_full", "queue_timeout"):
            log.record(rejected(f"tenant-{number}", reason))
    log.write()
    assert len(rejections(caplog)) == logs.MOST_REJECTION_LINES + 2
    assert sum(int(line.split()[1]) for line in rejections(caplog)) == 2_000


@pytest.mark.parametrize("stops", [False, True])
async def test_a_gateway_logs_rejections_of_every_stage_without_words_of_their_clients(
    caplog, monkeypatch, stops
):
    monkeypatch.setattr(logs, "REJECTIONS_EVERY_S", 60.0 if stops else 0.2)
    async with running_engines(1) as (engine,), running_gateway([worker_for(engine)]) as gateway:
        await gateway.fetch("POST", "/v1/chat/completions", b"{SECRET")
        await gateway.fetch("GET", "/SECRET")
        await gateway.fetch("GET", "/health", headers=[(b"x-secret", b"s" * 40_000)])
        await gateway.chat(model="SECRET")
        if not stops:
            await eventually(lambda: rejections(caplog))
    found = "\n".join(rejections(caplog))
    for kind in ("bad_request", "not_found", "head_too_large", "no_worker_for_model"):
        assert f" {kind}, " in found
    assert "of tenant default" in found
    assert "SECRET" not in found

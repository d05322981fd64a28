"""A configuration that is read again while requests are under way: taken over whole, or not at all."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from dataclasses import replace
from hashlib import sha256

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig, WorkerConfig
from phasewise.gateway.api.auth import key_sha256
from phasewise.gateway.reload import LOOK_EVERY_S, Reloader
from phasewise.gateway.settings import lends_rights
from phasewise.scheduling.world import ClusterView, Health
from tests.builders import make_worker
from tests.gateway.harness import (
    ADMIN,
    chat_body,
    events_of,
    eventually,
    listening,
    running_gateway,
    worker_for,
)
from tests.paths import ROOT

CERTIFICATE = str(ROOT / "tests" / "clients" / "localhost-for-tests-only.pem")


def with_key(key):
    return [(b"authorization", b"Bearer " + key.encode())]


def keys(*names, **fields):
    return [{"sha256": key_sha256(name), "tenant": name, **fields} for name in names]


def changed(reply):
    assert reply.status == 200, reply.body
    return orjson.loads(reply.body)["changed"]


async def begin_stream(gateway, headers=(), tokens=200):
    """A stream under way, and the task that reads it to its end."""
    under_way = gateway.under_way
    task = asyncio.create_task(gateway.chat(headers=headers, stream=True, max_tokens=tokens))
    await eventually(lambda: gateway.under_way > under_way)
    return task


# --- keys ---------------------------------------------------------------------------------------------------


async def test_a_revoked_key_is_rejected_and_its_stream_goes_on():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a", "b")) as gateway:
        stream = await begin_stream(gateway, with_key("a"))
        assert changed(await gateway.reload(api_keys=keys("b", "c"))) == "keys added: 1; keys removed: 1"
        assert (await gateway.chat(headers=with_key("a"))).status == 401
        assert (await gateway.chat(headers=with_key("b"))).status == 200
        assert (await gateway.chat(headers=with_key("c"))).status == 200
        assert events_of((await stream).body)[-1] == "[DONE]"


async def test_other_limits_of_a_key_hold_at_once():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a")) as gateway:
        assert (await gateway.chat(headers=with_key("a"))).status == 200
        assert changed(await gateway.reload(api_keys=keys("a", requests_per_minute=1))) == "gateway.api_keys"
        replies = [await gateway.chat(headers=with_key("a")) for _ in range(3)]
        assert 429 in {reply.status for reply in replies}


async def test_another_admin_key_replaces_the_old_one():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert changed(await gateway.reload(admin_key_sha256=key_sha256("new"))) == "gateway.admin_key_sha256"
        assert (await gateway.fetch("GET", "/phasewise/v1/workers", headers=ADMIN)).status == 401
        assert (await gateway.fetch("GET", "/phasewise/v1/workers", headers=with_key("new"))).status == 200


async def test_only_admins_may_ask_for_it():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        assert (await gateway.fetch("POST", "/phasewise/v1/reload")).status == 401
        assert (await gateway.fetch("GET", "/phasewise/v1/reload", headers=ADMIN)).status == 405


# --- workers ------------------------------------------------------------------------------------------------


async def test_a_new_worker_is_used_and_a_removed_one_finishes_what_it_has():
    async with running_engines(2) as (old, new), running_gateway([old]) as gateway:
        stream = await begin_stream(gateway)
        assert (
            changed(await gateway.reload(worker_for(new, "other"))) == "workers added: 1; workers removed: 1"
        )
        await eventually(lambda: gateway.app.gateway.cluster.snapshot()[0].health is Health.UP)
        assert (await gateway.chat()).status == 200
        assert new.requests_finished == 1
        assert events_of((await stream).body)[-1] == "[DONE]"
        page = (await gateway.fetch("GET", "/metrics")).body
        assert b'phasewise_worker_up{worker="other"' in page
        assert b'worker="w0"' not in page


async def test_a_worker_with_other_slots_stays_the_same_worker():
    async with running_engines(1) as (engine,), running_gateway([engine]) as gateway:
        before = gateway.app.gateway.cluster.snapshot()[0]
        assert changed(await gateway.reload(worker_for(engine, slots=3))) == "nothing changed"
        after = gateway.app.gateway.cluster.snapshot()[0]
        assert after == replace(before, worker=replace(before.worker, slots=3))


async def test_a_name_that_moves_to_another_address_is_another_worker():
    async with running_engines(2) as (one, other), running_gateway([one]) as gateway:
        stream = await begin_stream(gateway)
        changed(await gateway.reload(worker_for(other)))
        await eventually(lambda: gateway.app.gateway.cluster.snapshot()[0].health is Health.UP)
        assert (await gateway.chat()).status == 200
        assert other.requests_finished == 1
        assert events_of((await stream).body)[-1] == "[DONE]"
        assert len(gateway.app._parts.engines.clients) == 1


async def test_a_worker_that_was_removed_is_closed_once_it_is_idle():
    async with running_engines(2) as (one, other), running_gateway([one, other]) as gateway:
        engines = gateway.app._parts.engines
        stream = await begin_stream(gateway)
        await gateway.reload(worker_for(other, "w1"))
        await gateway.reload(worker_for(one, "w0"), worker_for(other, "w1"))
        await stream
        await gateway.reload(worker_for(one, "w0"))
        await eventually(lambda: not any(client.is_busy for client in engines.clients.values()))
        await gateway.reload(worker_for(one, "w0"))
        assert engines._retired == []


def test_the_cluster_says_who_is_gone_and_who_is_new():
    a, b = make_worker("a"), make_worker("b")
    cluster = ClusterView([a, b])
    cluster.mark_up("a", "boot-1")
    cluster.mark_up("b", "boot-2")
    moved = replace(b, url="http://127.0.0.1:2")
    change = cluster.set_workers([replace(a, slots=5), moved, make_worker("c")])
    cluster.check_invariants()
    assert change.gone == ("b",)
    assert [worker.name for worker in change.new] == ["b", "c"]
    assert cluster.state("a").worker.incarnation == "boot-1"
    assert cluster.state("b").health is Health.UNKNOWN
    assert not cluster.is_current(make_worker("gone").ref)


async def test_the_key_of_a_worker_is_sent_and_read_again(tmp_path):
    sent, key_file = [], tmp_path / "key"
    key_file.write_text("first\n")

    async def answer(head, _body, writer):
        sent.extend(line for line in head.split(b"\r\n") if line.startswith(b"authorization"))
        page = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{}}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(page) + page)

    async with listening(answer) as config:
        worker = config.model_copy(update={"api_key_file": str(key_file)})
        async with running_gateway([worker]) as gateway:
            await gateway.chat(headers=with_key("a client's"))
            key_file.write_text("second\n")
            assert changed(await gateway.reload()) == "nothing changed"
            await gateway.chat()
            key_file.write_text("")
            refused = await gateway.reload()
            await gateway.chat()
    assert sent == [b"authorization: Bearer first"] + 2 * [b"authorization: Bearer second"]
    assert refused.status == 409
    assert b"must hold one key" in refused.body


async def test_rights_are_lent_from_the_moment_a_worker_or_a_client_has_a_key(tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text("engines")
    async with running_engines(2) as engines, running_gateway(engines[:1]) as gateway:
        pipeline = gateway.app.gateway.pipeline
        assert not pipeline.lends_rights
        keyed = worker_for(engines[1], "w1", api_key_file=str(key_file))
        changed(await gateway.reload(worker_for(engines[0]), keyed))
        assert pipeline.lends_rights
        await gateway.reload(worker_for(engines[0]))
        assert not pipeline.lends_rights
        await gateway.reload(api_keys=keys("a"))
        assert pipeline.lends_rights


@pytest.mark.parametrize(
    ("fields", "lent"),
    [({}, False), ({"tls": {"ca": "a"}}, False), ({"tls": {"certificate": "c", "key": "k"}}, True)],
)
def test_a_certificate_of_the_gateways_own_lends_rights_as_a_key_does(fields, lent):
    worker = WorkerConfig(name="w", url="https://a", model="m", **fields)
    assert lends_rights(GatewayConfig(), [worker]) is lent


# --- what is not taken over -------------------------------------------------------------------------------


async def test_a_file_that_cannot_be_used_changes_nothing():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a")) as gateway:
        before = gateway.file
        refused = await gateway.reload(policy="fastest", api_keys=keys("b"))
        assert refused.status == 409
        error = orjson.loads(refused.body)["error"]
        assert error["code"] == "bad_config"
        assert error["message"].startswith("nothing was changed: gateway.policy is 'fastest'")
        assert (await gateway.chat(headers=with_key("a"))).status == 200
        assert (await gateway.chat(headers=with_key("b"))).status == 401
        gateway.file = before
        assert changed(await gateway.reload()) == "nothing changed"


async def test_the_last_key_is_not_taken_away_because_that_would_open_the_door():
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a")) as gateway:
        refused = await gateway.reload(api_keys=())
        assert refused.status == 409
        assert b"open to everyone" in refused.body
        assert (await gateway.chat()).status == 401


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"port": 9999}, "gateway.port"),
        ({"log": {"requests": True}}, "gateway.log"),
        ({"resume": "off"}, "resume"),
    ],
)
async def test_what_needs_a_restart_is_named(setting, named):
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        refused = await gateway.reload(**setting)
        assert refused.status == 409
        assert named in refused.body.decode()
        assert "needs a restart" in refused.body.decode()


async def test_a_gateway_without_a_file_says_so():
    async with running_engines(1) as engines, running_gateway(engines) as gateway:
        gateway.app._router.reload = type(gateway.app._router)(gateway.app.gateway).reload
        reply = await gateway.fetch("POST", "/phasewise/v1/reload", headers=ADMIN)
        assert reply.status == 409


# --- files and signals ------------------------------------------------------------------------------------


async def test_a_changed_file_is_noticed_if_that_is_asked_for(tmp_path):
    path = tmp_path / "gateway.yaml"
    path.write_text("one")
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a")) as gateway:
        reloads = []

        def read():
            reloads.append(path.read_text())
            if reloads[-1] == "bad":
                raise ConfigError("it is bad")
            return gateway.file

        reloader = Reloader(gateway.app._parts, gateway.file, read, path)
        running = asyncio.create_task(reloader.run())
        await asyncio.sleep(2 * LOOK_EVERY_S)
        path.write_text("two")
        await asyncio.sleep(3 * LOOK_EVERY_S)
        assert reloads == []
        await reloader.reload()
        wanted = gateway.file.gateway.model_copy(update={"reload_on_change": True})
        gateway.file = gateway.file.model_copy(update={"gateway": wanted})
        await reloader.reload()
        reloads.clear()
        path.write_text("bad")
        await eventually(lambda: reloads == ["bad"])
        path.write_text("three")
        await eventually(lambda: reloads == ["bad", "three"])
        running.cancel()


async def test_a_signal_asks_for_it(caplog):
    async with running_engines(1) as engines, running_gateway(engines, api_keys=keys("a")) as gateway:
        wanted = gateway.file.gateway.model_copy(update={"policy": "none such"})
        gateway.file = gateway.file.model_copy(update={"gateway": wanted})
        gateway.app.begin_reload()
        await eventually(lambda: any("stays as it was" in it.getMessage() for it in caplog.records))


# --- certificates -----------------------------------------------------------------------------------------


def make_certificate(folder):
    path = folder / "new.pem"
    order = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost")
    names = ("-addext", "subjectAltName=DNS:localhost", "-days", "2")
    subprocess.run(
        [*order, *names, "-keyout", path, "-out", folder / "cert.pem"], check=True, capture_output=True
    )
    path.write_bytes(path.read_bytes() + (folder / "cert.pem").read_bytes())
    return str(path)


async def shown(gateway):
    """The digest of the certificate that the gateway shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = int(gateway.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return sha256(found).hexdigest()


async def test_another_certificate_is_shown_to_new_connections(tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CERTIFICATE)
    new, tls = make_certificate(tmp_path), {"certificate": CERTIFICATE, "key": CERTIFICATE}
    async with running_engines(1) as engines, running_gateway(engines, tls=tls) as gateway:
        before = await shown(gateway)
        client = HttpClient(gateway.url.replace("http://127.0.0.1", "https://localhost"))
        gateway.client.close()
        gateway.client = client
        body = orjson.dumps(chat_body(stream=True, max_tokens=200))
        stream = asyncio.create_task(client.fetch("POST", "/v1/chat/completions", body=body))
        await eventually(lambda: gateway.under_way)
        assert changed(await gateway.reload(tls={"certificate": new, "key": new})) == "gateway.tls"
        assert await shown(gateway) != before
        assert events_of((await stream).body)[-1] == "[DONE]"
        refused = await gateway.reload(tls={"certificate": str(tmp_path / "none"), "key": new})
        assert refused.status == 409

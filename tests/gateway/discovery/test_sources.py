"""Sources are watched: what changes is reported, and nothing that fails ends the watch."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import DiscoverConfig, KubernetesConfig
from phasewise.gateway.discovery import sources
from phasewise.gateway.discovery.sources import Discovery
from tests.gateway.discovery.test_endpoints import a_slice, endpoint
from tests.gateway.harness import eventually, running_gateway
from tests.raw_server import raw_server


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(sources, "AGAIN_AFTER_S", 0.02)
    monkeypatch.setattr(sources, "RESOLVE_EVERY_S", 0.02)


class ApiServerDouble:
    """An API server with one Service, whose watches can be made to fail."""

    def __init__(self):
        self.slices = {}
        self.version = 10
        self.lists = 0
        self.tokens = []
        self.watching = []
        self.status = 200

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.tokens.append(head.partition("Bearer ")[2].partition("\r\n")[0])
                if self.status != 200:
                    writer.write(b"HTTP/1.1 %d no\r\ncontent-length: 2\r\n\r\n{}" % self.status)
                elif "watch=1" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                    self.watching.append(writer)
                else:
                    self.lists += 1
                    items = list(self.slices.values())
                    page = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
                    body = json.dumps(page).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def send(self, data):
        for writer in self.watching:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, kind, changed):
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.send(json.dumps({"type": kind, "object": changed}).encode() + b"\n")

    def cut(self):
        while self.watching:
            self.watching.pop().close()


@contextlib.asynccontextmanager
async def watching(tmp_path):
    double, reported = ApiServerDouble(), []

    async def report(workers):
        reported.append([it.name for it in workers])

    token = tmp_path / "token"
    token.write_text("one")
    async with raw_server(double.serve) as port:
        kubernetes = KubernetesConfig(api=f"http://127.0.0.1:{port}", token_file=str(token))
        task = asyncio.create_task(Discovery([DiscoverConfig(service="s")], kubernetes, report).run())
        await eventually(lambda: double.watching)
        try:
            yield double, reported, token
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_is_added_changed_and_deleted_is_reported(tmp_path):
    async with watching(tmp_path) as (double, reported, _):
        double.event("ADDED", a_slice(endpoint("10.0.0.1", "a")))
        await eventually(lambda: reported == [["a"]])
        double.event("MODIFIED", a_slice(endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b")))
        await eventually(lambda: sorted(reported[-1]) == ["a", "b"])
        double.event(
            "MODIFIED", a_slice(endpoint("10.0.0.1", "a", terminating=True), endpoint("10.0.0.2", "b"))
        )
        await eventually(lambda: reported[-1] == ["b"])
        double.event("DELETED", a_slice())
        await eventually(lambda: reported[-1] == [])


async def test_replicas_have_orders_of_their_own(tmp_path, monkeypatch):
    engines, orders = [endpoint(f"10.0.0.{number}", f"engine-{number}") for number in range(20)], []
    for host in ("gateway-a", "gateway-b", "gateway-a"):
        monkeypatch.setattr(sources.socket, "gethostname", lambda host=host: host)
        async with watching(tmp_path) as (double, reported, _):
            double.event("ADDED", a_slice(*engines))
            await eventually(lambda: reported)
        orders += reported
    assert orders[0] == orders[2] != orders[1]
    assert {*orders[0]} == {*orders[1]}


async def test_an_event_in_two_pieces_is_one(tmp_path):
    async with watching(tmp_path) as (double, reported, _):
        changed = a_slice(endpoint("10.0.0.1", "a"))
        changed["metadata"]["resourceVersion"] = "11"
        line = json.dumps({"type": "ADDED", "object": changed}).encode() + b"\n"
        double.send(line[:30])
        await asyncio.sleep(0.05)
        double.send(line[30:])
        await eventually(lambda: reported == [["a"]])


@pytest.mark.parametrize("how", ["error", "cut"])
async def test_whoever_missed_changes_lists_again(tmp_path, how):
    async with watching(tmp_path) as (double, reported, _):
        double.slices["s"] = a_slice(endpoint("10.0.0.3", "c"))
        if how == "error":
            status = {"metadata": {}, "code": 410, "reason": "Expired"}
            double.send(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        else:
            double.cut()
        await eventually(lambda: reported[-1:] == [["c"]])
        assert double.lists == 2


async def test_engines_stay_while_the_api_server_does_not_answer(tmp_path, caplog):
    async with watching(tmp_path) as (double, reported, _):
        double.event("ADDED", a_slice(endpoint("10.0.0.1", "a")))
        await eventually(lambda: reported == [["a"]])
        double.status = 500
        double.cut()
        await asyncio.sleep(0.3)
        assert reported == [["a"]]
        assert len([it for it in caplog.records if "answered 500" in it.getMessage()]) == 1
        double.status = 200
        await eventually(lambda: reported[-1] == [])


@pytest.mark.parametrize(("status", "said"), [(403, "does not let it read"), (401, "does not know")])
async def test_missing_rights_are_named(tmp_path, caplog, status, said):
    async with watching(tmp_path) as (double, _, _):
        double.status = status
        double.cut()
        await eventually(lambda: any(said in it.getMessage() for it in caplog.records))
        assert any("hint: bind its service account to a Role" in it.getMessage() for it in caplog.records)


async def test_a_token_that_was_replaced_is_used(tmp_path):
    async with watching(tmp_path) as (double, _, token):
        token.write_text("two")
        double.cut()
        await eventually(lambda: double.tokens[-1] == "two")


async def test_a_gateway_serves_with_engines_that_dns_names(monkeypatch):
    async with running_engines(1) as (engine,):
        source = DiscoverConfig(dns="localhost", port=engine.port)
        async with running_gateway([], discover=(source,)) as gateway:
            await eventually(lambda: gateway.app.gateway.cluster.models)
            assert (await gateway.chat()).status == 200
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "getaddrinfo", nothing_there)
            await asyncio.sleep(0.2)
            assert (await gateway.chat()).status == 200, (
                "a name that is unknown for a while takes nobody away"
            )


async def nothing_there(*_name, **_options):
    raise OSError

"""Sources are watched, and what changes is reported; the objects of a cluster name engines."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from phasewise.core.errors import ConfigError
from phasewise.core.worker import Role
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import DiscoverConfig, KubernetesConfig
from phasewise.gateway import discovery
from phasewise.gateway.discovery import (
    Discovery,
    pool_selector,
    problem_of_pool,
    problem_of_service,
    workers_in_pods,
    workers_in_slices,
)
from tests.gateway.harness import eventually, running_gateway
from tests.raw_server import raw_server

SERVICE = DiscoverConfig(service="engines")
POOL = DiscoverConfig(inference_pool="engines")


def endpoint(address, pod=None, **conditions):
    target = {} if pod is None else {"targetRef": {"kind": "Pod", "name": pod}}
    return {"addresses": [address], "conditions": conditions, **target}


def a_slice(*endpoints, ports=(("http", 8000),), **labels):
    given = [{"name": name, "port": number} for name, number in ports]
    return {"metadata": {"name": "s", "labels": labels}, "endpoints": list(endpoints), "ports": given}


def pod(name, address="10.0.0.1", ready="True", **metadata):
    status = {"podIP": address, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, **metadata}, "status": status}


def names(workers):
    return [it.name for it in workers]


def test_ready_endpoints_are_workers_by_the_names_of_their_pods():
    found = workers_in_slices(
        [a_slice(endpoint("10.0.0.2", "b", ready=True), endpoint("10.0.0.1", "a"))], SERVICE
    )
    assert [(it.name, it.url, it.model) for it in found] == [
        ("a", "http://10.0.0.1:8000", ""),
        ("b", "http://10.0.0.2:8000", ""),
    ]


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}])
def test_an_endpoint_that_is_not_ready_or_ends_gets_no_new_request(conditions):
    assert workers_in_slices([a_slice(endpoint("10.0.0.1", "a", **conditions))], SERVICE) == []


def test_an_endpoint_in_two_slices_is_one_worker():
    twice = [a_slice(endpoint("10.0.0.1", "a")), a_slice(endpoint("10.0.0.1", "a"))]
    assert names(workers_in_slices(twice, SERVICE)) == ["a"]


def test_addresses_without_a_pod_and_of_ipv6():
    found = workers_in_slices([a_slice(endpoint("fd00::1"))], SERVICE)
    assert [(it.name, it.url) for it in found] == [("engine-fd00--1", "http://[fd00::1]:8000")]


@pytest.mark.parametrize(("wanted", "number"), [("http", 8000), (8000, 8000), ("metrics", 9000)])
def test_of_several_ports_the_one_that_is_asked_for(wanted, number):
    ports = (("http", 8000), ("metrics", 9000))
    found = workers_in_slices(
        [a_slice(endpoint("10.0.0.1"), ports=ports)], DiscoverConfig(service="engines", port=wanted)
    )
    assert [it.url for it in found] == [f"http://10.0.0.1:{number}"]


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({"phasewise.dev/role": "prefill"}, Role.PREFILL),
        ({"llm-d.ai/role": "decode"}, Role.DECODE),
        ({"llm-d.ai/role": "both"}, Role.MIXED),
        ({"llm-d.ai/role": "something"}, Role.MIXED),
        ({}, Role.MIXED),
    ],
)
def test_labels_say_which_phases_an_engine_serves(labels, role):
    (by_service,) = workers_in_slices([a_slice(endpoint("10.0.0.1"), **labels)], SERVICE)
    (by_pod,) = workers_in_pods([pod("a", labels=labels)], (8000,), POOL)
    assert (by_service.role, by_pod.role) == (role, role)


def test_pods_that_are_ready_and_stay():
    pods = [
        pod("a"),
        pod("b", ready="False"),
        pod("c", deletionTimestamp="2026-01-01T00:00:00Z"),
        {"metadata": {"name": "d"}, "status": {"phase": "Pending"}},
        {"metadata": {"name": "e"}},
    ]
    assert names(workers_in_pods(pods, (8000,), POOL)) == ["a"]


def test_each_port_of_a_pool_is_an_engine():
    found = workers_in_pods([pod("a")], (8000, 8001), POOL)
    assert [(it.name, it.url) for it in found] == [
        ("a-8000", "http://10.0.0.1:8000"),
        ("a-8001", "http://10.0.0.1:8001"),
    ]


def test_the_pods_and_ports_of_a_pool():
    spec = {"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 8000}]}
    assert pool_selector({"metadata": {"name": "p"}, "spec": spec}) == ("a=1,b=2", (8000,))
    with pytest.raises(ConfigError, match="selects no pods"):
        pool_selector({"metadata": {"name": "p"}, "spec": {"targetPorts": [{"number": 8000}]}})


def test_the_settings_of_a_source_are_those_of_its_engines():
    source = DiscoverConfig(
        service="engines", model="m", pool="p", slots=3, weights="w", scheme="https", steps_port=18000
    )
    (found,) = workers_in_slices([a_slice(endpoint("10.0.0.1"))], source)
    assert (found.model, found.pool, found.slots, found.weights) == ("m", "p", 3, "w")
    assert (found.url, found.steps_url) == ("https://10.0.0.1:8000", "http://10.0.0.1:18000")


@pytest.mark.parametrize(
    ("slices", "source", "said"),
    [
        ([], SERVICE, "it is not in the namespace n, or it selects no pods"),
        (
            [a_slice(endpoint("10.0.0.1"), ports=(("a", 1), ("b", 2)))],
            SERVICE,
            "it has several ports: set port to one of a, b",
        ),
        (
            [a_slice(endpoint("10.0.0.1"))],
            DiscoverConfig(service="engines", port="web"),
            "it has no port web: set port to one of http",
        ),
        (
            [a_slice(endpoint("10.0.0.1", ready=False))],
            SERVICE,
            "it has endpoints, and none of them is ready: look at its pods",
        ),
    ],
)
def test_the_usual_mistakes_of_a_service_are_named(slices, source, said):
    assert problem_of_service(slices, source, "n") == said


def test_the_usual_mistakes_of_a_pool_are_named():
    assert problem_of_pool([], "app=x") == "it selects no pods: none has the labels app=x"
    unready = "it selects pods, and none of them is ready: look at them"
    assert problem_of_pool([pod("a", ready="False")], "app=x") == unready


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"service": "a", "dns": "b"},
        {"dns": "a"},
        {"dns": "a", "port": "http"},
        {"inference_pool": "a", "port": 1},
    ],
)
def test_a_source_is_one_place_with_what_it_needs(fields):
    with pytest.raises(ValueError, match=r"give|leave out"):
        DiscoverConfig(**fields)


# --- sources that are watched


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(discovery, "AGAIN_AFTER_S", 0.02)
    monkeypatch.setattr(discovery, "RESOLVE_EVERY_S", 0.02)


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
        monkeypatch.setattr(discovery.socket, "gethostname", lambda host=host: host)
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

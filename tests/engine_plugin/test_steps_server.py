"""The steps server answers NDJSON on loopback, rejects strangers' names, and never hurts the engine."""

import http.client
import json
import logging
import socket
from contextlib import contextmanager

import pytest
from phasewise_engine_plugin import __version__
from phasewise_engine_plugin.ring import StepRing
from phasewise_engine_plugin.server import Address, StepsServer, engine_port, host_is_allowed, steps_address
from phasewise_engine_plugin.steps import finished_request
from vllm_stand_ins import make_finished, make_step

EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - never bound here


@contextmanager
def serving(ring, details=True):
    server = StepsServer(ring, "vllm 0.32.0", details, Address("127.0.0.1", 0))
    assert server.start()
    try:
        yield server
    finally:
        server.stop()


def get(server, path, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response, [json.loads(line) for line in response.read().splitlines()]
    finally:
        connection.close()


def make_ring(steps, capacity=1000):
    ring = StepRing(capacity)
    for at in range(steps):
        ring.append(make_step(at=float(at)))
    return ring


def test_header_then_a_line_per_step():
    ring = make_ring(2)
    ring.append(make_step(finished=[finished_request(make_finished())]))
    with serving(ring) as server:
        response, (header, *steps) = get(server, "/steps")
    assert response.getheader("Content-Type") == "application/x-ndjson"
    assert header.pop("now_unix_s") > 1e9
    assert header.pop("pid") > 0
    assert len(header.pop("boot")) == 16
    assert header == {
        "v": 1,
        "recorder": __version__,
        "engine": "vllm 0.32.0",
        "oldest": 0,
        "next": 3,
        "details": True,
    }
    assert [step["seq"] for step in steps] == [0, 1, 2]
    assert steps[2] == {
        "v": 1,
        "seq": 2,
        "at": 1000.5,
        "engine": 0,
        "it": 7,
        "prompt_tokens": 0,
        "prompt_requests": 0,
        "decode_tokens": 1,
        "decode_requests": 1,
        "running": 1,
        "waiting": 0,
        "kv": 0.25,
        "preempted": 0,
        "first_tokens": 0,
        "finished": [
            {
                "id": "chatcmpl-abc",
                "reason": "stop",
                "prompt_tokens": 20,
                "cached_tokens": 16,
                "output_tokens": 5,
                "queue_s": 0.001235,
                "prefill_s": 0.08,
                "decode_s": 0.3,
                "e2e_s": 0.4,
                "preemptions": 0,
            }
        ],
    }


def test_since_and_limit_page_through_a_large_ring():
    with serving(make_ring(1000)) as server:
        seen, since = [], 0
        while True:
            _, (header, *steps) = get(server, f"/steps?since={since}&limit=300")
            seen += [step["seq"] for step in steps]
            if not steps:
                break
            since = steps[-1]["seq"] + 1
    assert seen == list(range(1000))
    assert header["next"] == 1000


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("since_unix_s=997.5", [998, 999]),
        ("since_unix_s=997", [997, 998, 999]),
        ("since_unix_s=5000", []),
        ("since_unix_s=0&limit=2", [0, 1]),
        ("since_unix_s=997&since=999", [999]),
        ("since_unix_s=998&since=5", [998, 999]),
    ],
)
def test_a_reader_can_begin_at_a_time(query, seqs):
    with serving(make_ring(1000)) as server:
        _, (header, *steps) = get(server, f"/steps?{query}")
    assert [step["seq"] for step in steps] == seqs
    assert (header["v"], header["oldest"], header["next"]) == (1, 0, 1000)


def test_one_connection_serves_many_polls():
    with serving(make_ring(3)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
        for since in (0, 3):
            connection.request("GET", f"/steps?since={since}")
            assert len(connection.getresponse().read().splitlines()) == 4 - since
        connection.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/steps?since=-1", 400),
        ("/steps?limit=x", 400),
        ("/steps?limit=0", 200),
        ("/steps?since_unix_s=x", 400),
        ("/steps?since_unix_s=nan", 400),
        ("/steps?since_unix_s=-1", 400),
    ],
)
def test_odd_requests_get_a_plain_answer(path, status):
    with serving(make_ring(1)) as server:
        response, lines = get(server, path)
    assert response.status == status
    assert len(lines) == 1


def test_a_page_that_rebinds_its_name_to_loopback_is_rejected():
    with serving(make_ring(1)) as server:
        response, (reply,) = get(server, "/steps", {"Host": "evil.example:18000"})
    assert response.status == 403
    assert "Host" in reply["error"]


@pytest.mark.parametrize(
    ("host", "bound", "allowed"),
    [
        ("localhost:18000", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("[::1]:18000", "::1", True),
        ("LOCALHOST", "10.0.0.5", True),
        ("10.0.0.5:18000", "10.0.0.5", True),
        ("10.0.0.6:18000", "10.0.0.5", False),
        ("10.0.0.6:18000", EVERY_INTERFACE, True),
        ("evil.example", EVERY_INTERFACE, False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        (None, "127.0.0.1", False),
    ],
)
def test_hosts_allowed(host, bound, allowed):
    assert host_is_allowed(host, bound) is allowed


def test_taken_port_is_one_warning_and_no_exception(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        address = Address("127.0.0.1", taken.getsockname()[1])
        assert StepsServer(StepRing(1), "vllm", False, address).start() is False
    assert len(caplog.records) == 1
    assert "PHASEWISE_STEPS_ADDR" in caplog.text


@pytest.mark.parametrize(
    ("argv", "port"),
    [
        (["vllm", "serve", "m"], 8000),
        (["vllm", "serve", "m", "--port", "8011"], 8011),
        (["vllm", "serve", "m", "--port=8012"], 8012),
        (["vllm", "--port"], 8000),
    ],
)
def test_engine_port_comes_from_the_command_line(argv, port):
    assert engine_port(argv) == port


def test_steps_address():
    assert steps_address({}, ["--port", "8011"]) == ("127.0.0.1", 18011)
    assert steps_address({"PHASEWISE_STEPS_ADDR": "10.0.0.5:9"}, []) == ("10.0.0.5", 9)
    assert steps_address({"PHASEWISE_STEPS_ADDR": "[::1]:9"}, []) == ("::1", 9)
    assert steps_address({"PHASEWISE_STEPS_ADDR": "off"}, []) is None
    for environ, argv in (({"PHASEWISE_STEPS_ADDR": "nowhere"}, []), ({}, ["--port", "60000"])):
        with pytest.raises(ValueError, match=r"host:port|above 65535"):
            steps_address(environ, argv)

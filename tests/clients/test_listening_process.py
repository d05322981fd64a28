"""The process behind a port is found with its children; what only forwards a port is not taken for it."""

import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from phasewise.clients import processes
from phasewise.clients.processes import (
    listeners,
    listening_processes,
    loopback_port,
    process_tree,
    read_stat,
)

PARENT_AND_CHILD = """
import os, socket, sys, time
listener = socket.socket(); listener.bind(("127.0.0.1", 0)); listener.listen()
if os.fork():
    print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:8000", 8000),
        ("http://localhost:8000/v1", 8000),
        ("http://[::1]:9", 9),
        ("http://127.0.0.1", 80),
        ("http://10.0.0.5:8000", None),
        ("http://engine.example:8000", None),
    ],
)
def test_only_loopback_leads_to_a_process_of_ours(url, port):
    assert loopback_port(url) == port


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_we_find_ourselves_behind_our_own_port(family, host):
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert listening_processes({port}) == {port: os.getpid()}
    assert listening_processes({port}) == {}


def test_of_several_holders_of_a_socket_the_parent_is_the_engine():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT_AND_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        port = int(engine.stdout.readline())
        assert listening_processes({port}) == {port: engine.pid}
        root, child = process_tree(engine.pid)
        assert root.pid == engine.pid != child.pid
        engine.communicate(timeout=300)
    assert process_tree(engine.pid) == ()


def test_what_only_forwards_a_port_is_no_engine(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(processes, "FORWARDERS", {read_stat(os.getpid()).name})
        assert listening_processes({port}) == {}


def test_a_mere_connection_and_another_address_are_no_engine():
    with socket.create_server(("127.0.0.2", 0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as client:
            ports = {address[1], client.getsockname()[1]}
            assert listening_processes(ports) == {}
            assert listeners(ports) == {address[1]: os.getpid()}


def test_a_process_is_told_with_its_times():
    stat = read_stat(os.getpid())
    assert stat.pid == os.getpid()
    assert stat.cpu_s > 0
    assert 0 < time.time() - stat.started_unix_s < 24 * 3600


def test_a_machine_that_tells_nothing_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
    assert listening_processes({80}) == {}
    assert process_tree(1) == ()
    assert read_stat(1) is None

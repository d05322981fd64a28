"""The process behind a port is found with its children; what only forwards a port is not taken for it."""

import os
import socket
import subprocess
import sys

import pytest

from phasewise.adapters.listening_process import (
    booted_unix_s,
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
        assert (root.pid, child.parent) == (engine.pid, engine.pid)
        engine.communicate(timeout=5)
    assert process_tree(engine.pid) == ()


def fake_proc(root, name, address="0100007F:1F90", state="0A"):
    """A machine with one process, which holds the socket 77."""
    (root / "net").mkdir()
    (root / "net" / "tcp").write_text(
        f"  sl local\n   0: {address} 00000000:0000 {state} 0:0 0:0 0 0 0 77 1\n"
    )
    (root / "5" / "fd").mkdir(parents=True)
    (root / "5" / "fd" / "3").symlink_to("socket:[77]")
    (root / "5" / "stat").write_text(f"5 ({name}) S 1 {'0 ' * 9}300 200 0 0 0 0 1 0 1000 0\n")
    return root


def test_a_process_on_a_port_is_told_with_its_times(tmp_path):
    proc = fake_proc(tmp_path, "a (strange) name")
    assert listening_processes({8080}, proc) == {8080: 5}
    stat = read_stat(5, proc)
    per_s = os.sysconf("SC_CLK_TCK")
    assert (stat.name, stat.parent, stat.cpu_s) == ("a (strange) name", 1, 500 / per_s)
    assert stat.started_s == 1000 / per_s


@pytest.mark.parametrize(
    "odds",
    [{"name": "docker-proxy"}, {"address": "0500000A:1F90"}, {"state": "01"}, {"address": "0100007F:1F91"}],
)
def test_a_forwarder_another_address_and_a_mere_connection_are_no_engine(tmp_path, odds):
    assert listening_processes({8080}, fake_proc(tmp_path, **{"name": "python", **odds})) == {}


def test_a_machine_that_tells_nothing_is_no_error(tmp_path):
    assert listening_processes({80}, tmp_path / "missing") == {}
    assert process_tree(1, tmp_path / "missing") == ()
    assert booted_unix_s(tmp_path) is None
    assert booted_unix_s() > 1e9

"""An API server that dies without a word is noticed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time

import pytest

from phasewise.clients import kubernetes
from phasewise.clients.kubernetes import ApiServer, Listed
from phasewise.core.errors import UpstreamError
from tests.raw_server import raw_server

CHANGE = b'{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "11"}}}\n'
IN_A_NAMESPACE = ["unshare", "-n", "sh", "-c"]
SILENCE = ["iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP"]


async def one_change(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(CHANGE), CHANGE))
    await reader.read()


async def watch_until_it_breaks(token, at_first_change):
    """Whether the watch ended with an error, and how long after `at_first_change`."""
    async with raw_server(one_change) as port:
        watch = ApiServer(f"http://127.0.0.1:{port}", token, "").follow("/pods", "a=b", Listed("10"))
        await anext(watch)
        at_first_change()
        began_s = time.monotonic()
        try:
            await anext(watch)
        except UpstreamError:
            return time.monotonic() - began_s
    raise AssertionError("the watch should have broken")


async def test_a_watch_asks_whether_its_api_server_is_still_there_and_gives_up_within_15_s(
    tmp_path, monkeypatch
):
    made = []
    token = tmp_path / "token"
    token.write_text("one")
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def noted(*about, **more):
        transport, connection = await connect(*about, **more)
        made.append(transport)
        return transport, connection

    monkeypatch.setattr(loop, "create_connection", noted)

    def read_and_end():
        sock = made[0].get_extra_info("socket")
        asked.update({it: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, it)) for it in kubernetes._TCP})
        asked["on"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        made[0].abort()

    asked = {}
    await watch_until_it_breaks(str(token), read_and_end)
    assert asked["on"]
    probes_s = [asked["TCP_KEEPIDLE"] + number * asked["TCP_KEEPINTVL"] for number in range(10)]
    assert min(at_s for at_s in probes_s if at_s * 1e3 > asked["TCP_USER_TIMEOUT"]) < 15


def test_a_watch_ends_when_nothing_more_comes_from_its_api_servers_machine(tmp_path):
    """No FIN and no RST, as after a power failure: a namespace's firewall drops every packet."""
    allowed = shutil.which("unshare") and shutil.which("iptables")
    check = " ".join(["ip link set lo up &&", *SILENCE])
    if not allowed or subprocess.run([*IN_A_NAMESPACE, check], capture_output=True, check=False).returncode:
        pytest.skip("needs root, unshare and iptables")
    (tmp_path / "token").write_text("one")
    run = ["exec", sys.executable, "-m", "tests.clients.test_kubernetes", str(tmp_path / "token")]
    in_a_namespace = [*IN_A_NAMESPACE, " ".join(["ip link set lo up &&", *run])]
    done = subprocess.run(in_a_namespace, capture_output=True, text=True, timeout=30, check=True)
    assert 1.0 < float(done.stdout) < 10.0


if __name__ == "__main__":
    faster = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_USER_TIMEOUT": 1_500}
    tcp = tuple((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in faster.items())
    kubernetes.PROBES = (kubernetes.PROBES[0], *tcp)
    print(asyncio.run(watch_until_it_breaks(sys.argv[1], lambda: subprocess.run(SILENCE, check=True))))

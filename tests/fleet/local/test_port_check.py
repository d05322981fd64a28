"""A taken port is found before anything starts, and its holder is named."""

import os
import socket
import subprocess
import sys
import time

import pytest

from phasewise.clients.processes import listeners
from phasewise.core.errors import FleetError
from phasewise.fleet.local.port_check import WantedPort, reject_taken_ports, wanted_ports
from tests.fleet.builders import free_ports, make_plan


def wanted(port):
    return WantedPort(port, "127.0.0.1", "engine main-0", "move it")


def test_free_ports_pass():
    reject_taken_ports([wanted(port) for port in free_ports(2)])


def test_holder_is_named_with_pid_and_command():
    (port,) = free_ports(1)
    holder = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], stderr=subprocess.DEVNULL
    )
    try:
        while port not in listeners((port,)):
            time.sleep(0.02)
        with pytest.raises(FleetError) as raised:
            reject_taken_ports([wanted(port)])
    finally:
        holder.kill()
        holder.wait()
    assert f"port {port}, needed by engine main-0, is used by pid {holder.pid}" in raised.value.message
    assert f"http.server --bind 127.0.0.1 {port}" in raised.value.message
    assert "move it" in raised.value.hint


def test_own_listener_is_found_on_ipv6_too():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert listeners((port,)) == {port: os.getpid()}


def test_port_whose_connections_fade_counts_as_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # this side closes first, so it is the one that lingers
        client.close()
    reject_taken_ports([wanted(port)])


def test_a_fleet_wants_the_ports_of_gateway_and_engines(tmp_path):
    plan = make_plan(tmp_path)
    assert {want.port for want in wanted_ports(plan)} == {plan.gateway.port, plan.engines[0].port}

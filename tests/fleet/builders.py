"""Small fleets to test with: an engine environment that does not exist, and stand-ins that really run."""

import random
import socket
import sys
from contextlib import suppress
from pathlib import Path

from phasewise.core.worker import Role
from phasewise.fleet.config import GatewayConfig, GatewayFile, WorkerConfig
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import SIDE_PORT_OFFSET, STEPS_PORT_OFFSET
from phasewise.fleet.local.plan import FleetPlan, MemberPlan, ProcessPlan

STAND_IN = Path(__file__).with_name("stand_in_engine.py")


def make_engine(device="cpu", plugin_version="0.1.0", nixl=True):
    return EngineEnvironment(Path("/engine/bin/python"), "0.32.0", device, plugin_version, nixl=nixl)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def free_engine_port(engines):
    """A first engine port at which so many engines find all their ports free."""
    for _ in range(100):
        # With the recorders and side channels above them, all below the ports that clients are handed.
        first = random.randrange(10_300, 12_500)  # noqa: S311 - a port, no secret
        offsets = (0, STEPS_PORT_OFFSET, SIDE_PORT_OFFSET)
        with suppress(OSError):
            for port in (first + number + offset for number in range(engines) for offset in offsets):
                socket.create_server(("127.0.0.1", port)).close()
            return first
    raise RuntimeError(f"no free ports were found for {engines} engines")


def stand_in(name, port, home, *options, role=Role.MIXED):
    return MemberPlan(
        name=name,
        process=ProcessPlan(
            argv=(sys.executable, "-I", "-S", str(STAND_IN), str(port), *options),
            log=str(home / "logs" / f"{name}.log"),
        ),
        port=port,
        url=f"http://127.0.0.1:{port}",
        role=role,
    )


def make_plan(home, *engine_options, gateway_options=(), drain_s=120.0):
    """A fleet of one stand-in engine and a stand-in gateway."""
    (home / "logs").mkdir(parents=True, exist_ok=True)
    engine_port, gateway_port = free_ports(2)
    engine = stand_in("main-0", engine_port, home, *engine_options)
    return FleetPlan(
        name="test",
        model="stand-in",
        home=str(home),
        engines=(engine,),
        gateway=stand_in("gateway", gateway_port, home, *gateway_options, role=None),
        gateway_file=GatewayFile(
            gateway=GatewayConfig(port=gateway_port, drain_s=drain_s),
            workers=(WorkerConfig(name="main-0", url=engine.url, model="stand-in"),),
        ),
    )

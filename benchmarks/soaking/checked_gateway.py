"""A gateway that checks its own books once a second: `python checked_gateway.py FILE CHECKS`.

CHECKS gets a line of JSON a second: what it holds, and which invariants do not hold.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from phasewise.fleet.config import load_gateway_file
from phasewise.gateway import serve as serving
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.overload import OverloadWatch

EVERY_S = 1.0


def broken(app: GatewayApp) -> Iterator[str]:
    """The invariants that do not hold now, in words."""
    parts = app._parts
    world, gateway = parts.world, parts.gateway
    for part in (world.cluster, world.ledger, world.queue, world.breakers, world.prefixes, world.retries):
        try:
            part.check_invariants()
        except AssertionError as error:
            yield str(error)
    names = {state.worker.name for state in world.cluster.snapshot()}
    if set(parts.engines.clients) != names:
        yield f"clients for {sorted(parts.engines.clients)}, workers {sorted(names)}"
    if set(parts.watcher._tasks) != names:
        yield f"health checks of {sorted(parts.watcher._tasks)}, workers {sorted(names)}"
    held = sum(parts.reservations._by_tenant.values())
    if parts.reservations.reserved_bytes != held:
        yield f"{parts.reservations.reserved_bytes} bytes reserved, {held} by tenants"
    if world.ledger.total_requests > len(gateway.open_requests):
        yield f"{world.ledger.total_requests} bookings for {len(gateway.open_requests)} open requests"


def held(app: GatewayApp) -> dict[str, Any]:
    """What the gateway holds now."""
    parts = app._parts
    return {
        "open": len(parts.gateway.open_requests),
        "booked": parts.world.ledger.total_requests,
        "waiting": len(parts.world.queue),
        "body_bytes": parts.reservations.reserved_bytes,
        "clients": len(parts.gateway.clients),
        "tasks": len(asyncio.all_tasks()),
        "retired": len(parts.engines._retired),
        "collected": sum(it["collections"] for it in gc.get_stats()),
    }


def main() -> None:
    """Serve, and check."""
    file, checks = map(Path, sys.argv[1:3])
    run = OverloadWatch.run
    apps: list[GatewayApp] = []

    def built(*given: Any, **named: Any) -> GatewayApp:  # noqa: ANN401 - passed on
        apps.append(build_app(*given, **named))
        return apps[-1]

    async def look(self: OverloadWatch) -> None:
        watching = asyncio.create_task(run(self))
        try:
            with checks.open("a") as written:
                while True:
                    await asyncio.sleep(EVERY_S)
                    line = {**held(apps[0]), "broken": list(broken(apps[0]))}
                    written.write(json.dumps(line) + "\n")
                    written.flush()
        finally:
            watching.cancel()

    serving.build_app = built  # type: ignore[attr-defined] # imported there: the name that serve() calls
    OverloadWatch.run = look  # type: ignore[method-assign]
    serving.serve(partial(load_gateway_file, file), file)


if __name__ == "__main__":
    main()

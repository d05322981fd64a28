"""Reads a gateway's file again while it serves, and takes over all of it or nothing.

Everything that can fail is done first. What follows happens within one turn of the event loop, so no request
meets a half of each configuration. Requests under way go on as they began.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import GatewayConfig, GatewayFile, WorkerConfig
from phasewise.fleet.config.credentials import access_of
from phasewise.fleet.local.run_files import write_private
from phasewise.gateway.discovery import Discovery
from phasewise.gateway.guard import ErrorGuard
from phasewise.gateway.parts import GatewayParts
from phasewise.gateway.server.client import ClientTimeouts
from phasewise.gateway.server.edge import EdgeBounds
from phasewise.gateway.server.request_head import AllowedSites
from phasewise.gateway.settings import (
    certificate_of,
    hashing_of,
    lends_rights,
    memory_limit_of,
    rules_of,
    slos_of,
    tenants_of,
    workers_of,
)
from phasewise.scheduling.world import WorkerChange

logger = logging.getLogger("phasewise.gateway")

LOOK_EVERY_S = 0.5
RELOAD_PATH = "/phasewise/v1/reload"
RELOADED = frozenset(
    {
        *("api_keys", "admin_key_sha256", "metrics_key_sha256", "slo_classes"),
        *("queue", "limits", "policy", "tls", "reload_on_change", "unknown_fields"),
        *("cors", "trusted_hosts", "engine_paths"),
    }
)
"""The settings under `gateway` that can change while it serves."""


class Reloader:
    """Takes over a changed file, at `path` if there is one; `read` reads it.

    All processes of a gateway have the configuration in the file `in_force`: one of them reads a changed
    one, and the others follow.
    """

    def __init__(
        self,
        parts: GatewayParts,
        file: GatewayFile,
        read: Callable[[], GatewayFile],
        path: Path | None = None,
        in_force: Path | None = None,
    ) -> None:
        self._in_force = in_force
        self._parts = parts
        self._file = file
        self._read = read
        self._path = path
        self._found: tuple[WorkerConfig, ...] = ()
        self._lock = asyncio.Lock()

    async def reload(self) -> str:
        """Take over the file, in all processes, and say what changed; raises ConfigError if it stays as it
        was.
        """
        async with self._lock:
            # A long file takes a while to parse.
            said = await self._apply(await asyncio.to_thread(self._read))
            self.put_in_force()
        await self._parts.peers.ask_all("POST", RELOAD_PATH)
        logger.info("the configuration was read again: %s", said)
        return said

    async def take_in_force(self) -> str:
        """Take over what another process has read."""
        async with self._lock:
            if self._in_force is None:
                raise ConfigError("this gateway has one process")
            file = await asyncio.to_thread(self._in_force.read_bytes)
            said = await self._apply(GatewayFile.model_validate_json(file))
        logger.info("the configuration was read again by another process: %s", said)
        return said

    def put_in_force(self) -> None:
        """Processes that are started from now on have what this one has."""
        if self._in_force is not None:
            write_private(self._in_force, self._file.model_dump_json().encode())

    async def use_discovered(self, found: tuple[WorkerConfig, ...]) -> None:
        """Serve these engines beside those of the file. Returns once placements see them."""
        async with self._lock:
            self._found = found
            said = await self._apply(self._file)
        logger.info("engines were found or have gone: %s", said)

    async def _apply(self, file: GatewayFile) -> str:
        # 1. Everything that can fail.
        self._check(file)
        parts, config, configs = self._parts, file.gateway, [*file.workers, *self._found]
        gateway, world, bounds = parts.gateway, parts.world, EdgeBounds.of(config.limits)
        workers = workers_of(configs, parts.peers.number, config.processes)
        rules = rules_of(config, workers)
        access = {worker.name: access_of(worker) for worker in configs}
        certificate = None if config.tls is None else certificate_of(config.tls)
        # 2. What follows happens within one turn of the event loop.
        parts.edge.certificate = certificate
        change = world.set_workers(workers)
        parts.scheduling.apply_rules(world, rules)
        parts.engines.set_workers(change, access)
        parts.watcher.follow(change)
        parts.edge.bounds, parts.edge.sites = bounds, AllowedSites.of(config)
        parts.reservations.set_bounds(bounds.body_bytes, bounds.bodies_bytes, tenants_of(config))
        gateway.authenticator.set_keys(config)
        gateway.pipeline.set_hashing(hashing_of(config, workers, gateway.authenticator))
        gateway.pipeline.set_trust(config, lends_rights=lends_rights(config, configs))
        gateway.metrics.set_labels(slos_of(config))
        gateway.overload.memory_limit_bytes = memory_limit_of(config.limits)
        gateway.clients.timeouts = ClientTimeouts(config.limits.body_s, config.limits.read_s)
        said, self._file = _words(self._file, file, change), file
        # 3. KV transfers are watched between the workers that there are now.
        if change.gone or change.new:
            await parts.kv_transfer_watch.stop()
            await parts.kv_transfer_watch.start()
        return said

    async def reload_or_say_why_not(self, *, in_force: bool = False) -> None:
        """As `reload`, or as `take_in_force`; an error is logged."""
        try:
            await (self.take_in_force() if in_force else self.reload())
        except ConfigError as error:
            logger.error("the configuration was read again and stays as it was: %s", error)

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run while the gateway serves."""
        sources, kubernetes = self._file.discover, self._file.kubernetes
        found = [Discovery(sources, kubernetes, self.use_discovered).run()] if sources else []
        # One process looks at the file, and the others follow.
        return [self.run(), *found] if self._parts.peers.number == 0 else found

    async def run(self) -> None:
        """Reload whenever a file has changed, if that is asked for; until cancelled."""
        guard, seen = ErrorGuard("reading the configuration again"), self._digest()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with guard:
                if self._file.gateway.reload_on_change and (now := self._digest()) != seen:
                    seen = now
                    await self.reload_or_say_why_not()

    def _check(self, file: GatewayFile) -> None:
        """Raise ConfigError for a change that needs a restart."""
        fixed = [f"gateway.{name}" for name in _needs_restart(self._file.gateway, file.gateway)]
        fixed += [
            name for name in ("discover", "kubernetes") if getattr(self._file, name) != getattr(file, name)
        ]
        if fixed:
            raise ConfigError(
                f"a change of {' and '.join(fixed)} needs a restart",
                hint="replace its processes (`phasewise gateway FILE --restart`), or change it back",
            )
        if self._file.gateway.api_keys and not file.gateway.api_keys:
            raise ConfigError(
                "without its last key the gateway would be open to everyone on this machine",
                hint="give another key instead, or restart the gateway to open it",
            )

    def _digest(self) -> bytes:
        """Of everything the configuration is read from."""
        tls, workers = self._file.gateway.tls, self._file.workers
        named = [] if tls is None else [tls.certificate, tls.key]
        named += [worker.api_key_file for worker in workers if worker.api_key_file is not None]
        digest = hashlib.sha256()
        for path in [*([] if self._path is None else [self._path]), *map(Path, named)]:
            try:
                digest.update(path.expanduser().read_bytes())
            except OSError:
                digest.update(b"-")
        return digest.digest()


def _needs_restart(before: GatewayConfig, after: GatewayConfig) -> list[str]:
    fixed = GatewayConfig.model_fields.keys() - RELOADED
    changed = sorted(name for name in fixed if getattr(before, name) != getattr(after, name))
    return changed + ["tls"] * ((before.tls is None) != (after.tls is None))


def _words(before: GatewayFile, after: GatewayFile, change: WorkerChange) -> str:
    """What changed, without any key."""
    was, now = ({key.sha256 for key in file.gateway.api_keys} for file in (before, after))
    counts = {
        "workers added": len(change.new),
        "workers removed": len(change.gone),
        "keys added": len(now - was),
        "keys removed": len(was - now),
    }
    said = [f"{what}: {count}" for what, count in counts.items() if count]
    others = [name for name in sorted(RELOADED) if name != "api_keys" or now == was]
    changed = [name for name in others if getattr(before.gateway, name) != getattr(after.gateway, name)]
    return "; ".join(said + [f"gateway.{name}" for name in changed]) or "nothing changed"

"""Runs the audit of KV transfers with the gateway, and keeps what it learned while workers come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.kv_transfer import KvTransferState
from phasewise.core.timeline import Timeline
from phasewise.core.worker import Role
from phasewise.fleet.config import KvTransferConfig
from phasewise.gateway.kv_transfer.audit import KvTransferAudit
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling import World
from phasewise.scheduling.kv_proofs import KvBalance, KvTransferProofs


class KvTransferWatch:
    """A TimelineSink that runs the audit. It does nothing in a fleet without prefill and decode workers."""

    def __init__(self, world: World, connect: Connect, config: KvTransferConfig) -> None:
        self._world = world
        self._connect = connect
        self._config = config
        self._clients: dict[str, HttpClient] = {}
        self._proofs, self._balance = KvTransferProofs(), KvBalance()
        self._audit: KvTransferAudit | None = None
        self._task: asyncio.Task[None] | None = None

    def record(self, timeline: Timeline) -> None:
        """Note a request that has ended."""
        if self._audit is not None:
            self._audit.record(timeline)

    def states(self) -> Sequence[KvTransferState]:
        """The state of KV transfers to every decode worker."""
        return () if self._audit is None else tuple(self._audit.states())

    async def start(self) -> None:
        """Read the counters, then watch in the background. The workers' health is known by now."""
        workers = [state.worker for state in self._world.cluster.snapshot()]
        if not {Role.PREFILL, Role.DECODE} <= {worker.role for worker in workers}:
            return
        timeout_s = self._config.timeout_s
        bounds = Timeouts(connect_s=2.0, head_s=timeout_s, idle_s=timeout_s)
        self._clients = {
            worker.name: self._connect(worker, bounds) for worker in workers if worker.role is not Role.MIXED
        }
        self._audit = KvTransferAudit(self._world, self._clients, self._proofs, self._balance)
        await self._audit.start()
        self._task = asyncio.create_task(self._audit.run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self._audit = None
        for client in self._clients.values():
            client.close()

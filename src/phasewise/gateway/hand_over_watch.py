"""Puts canary and audit together for fleets that hand over, and runs them with the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.config import HandOverConfig
from phasewise.gateway.canary import Canary
from phasewise.gateway.hand_over_audit import HandOverAudit
from phasewise.model.hand_over import SplitRule
from phasewise.model.hand_over_state import HandOverState
from phasewise.model.timeline import Timeline
from phasewise.model.worker import Role, Worker
from phasewise.request_flow import World
from phasewise.state.hand_over_proofs import HandOverProofs


class HandOverWatch:
    """A TimelineSink. In a fleet without a prefill and a decode worker it does nothing at all.

    It has connections of its own: whoever breaks off what clients wait for must not break off a canary.
    """

    def __init__(self, world: World, workers: Sequence[Worker], config: HandOverConfig) -> None:
        roles = {worker.role for worker in workers}
        watched = workers if {Role.PREFILL, Role.DECODE} <= roles else ()
        # Beyond what a canary may take, which is bounded by itself.
        patience_s = 2 * config.timeout_s
        bounds = Timeouts(connect_s=2.0, head_s=patience_s, idle_s=patience_s)
        self._clients = {
            worker.name: HttpClient(worker.url, bounds) for worker in watched if worker.role is not Role.MIXED
        }
        proofs = HandOverProofs()
        self._audit = HandOverAudit(world, self._clients, proofs) if watched else None
        self._canary = None
        # Whoever has switched hand-overs off wants neither load nor warnings from them.
        if self._audit and config.canary_s is not None and config.when is not SplitRule.NEVER:
            self._canary = Canary(world, self._clients, proofs, config, answered=self._audit.handed_over)
        self._tasks: list[asyncio.Task[None]] = []

    def record(self, timeline: Timeline) -> None:
        """Take note of a request that has ended."""
        if self._audit is not None:
            self._audit.record(timeline)

    def states(self) -> Sequence[HandOverState]:
        """What is known of hand-overs to every decode worker."""
        return () if self._audit is None else tuple(self._audit.states())

    async def start(self) -> None:
        """Look where counters stand, then watch in the background; workers have been looked at before."""
        if self._audit is None:
            return
        await self._audit.start()
        self._tasks.append(asyncio.create_task(self._audit.run()))
        if self._canary is not None:
            self._tasks.append(asyncio.create_task(self._canary.run()))

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            client.close()

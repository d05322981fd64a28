"""Logs each change of a worker's state once, and knows since when each worker is in its state.

It looks at a worker after every check, not at requests: many that fail at once are one change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from phasewise.core.units import elapsed
from phasewise.core.worker import WorkerRef
from phasewise.fleet.local.gateway_run import WorkerReport
from phasewise.scheduling.world import ClusterView, Health, WorkerState

logger = logging.getLogger("phasewise.gateway")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A worker at the last look. `since_unix_s` is when its health changed, `was_up` whether it ever was."""

    url: str
    health: Health
    incarnation: str
    circuit_open: bool
    since_unix_s: float
    was_up: bool


class WorkerLog:
    """Follows the workers of one cluster view; `every_s` is how often each is checked.

    `changed` is set when the health of one is another than before.
    """

    def __init__(
        self, cluster: ClusterView, circuit_open: Callable[[WorkerRef], bool], every_s: float
    ) -> None:
        self._cluster = cluster
        self._circuit_open = circuit_open
        self._every_s = every_s
        self._seen: dict[str, _Seen] = {}
        self.changed = asyncio.Event()

    def look(self, name: str) -> None:
        """Look at a worker that was just checked."""
        state, before, now_s = self._cluster.state(name), self._seen.get(name), time.time()
        ref, url = state.worker.ref, state.worker.url
        if before is not None and before.url != url:
            before = None  # a reload gave the name to another engine
        is_new = before is None or before.health is not state.health
        since_s = now_s if before is None or is_new else before.since_unix_s
        was_up = state.health is Health.UP or (before is not None and before.was_up)
        self._seen[name] = _Seen(url, state.health, ref.incarnation, self._circuit_open(ref), since_s, was_up)
        self._report_health(state, before, now_s)
        self._report_circuit(name, before)
        if is_new:
            self.changed.set()

    def reports(self) -> tuple[WorkerReport, ...]:
        """Every worker as it is now; `since_unix_s` is None until it was checked."""
        return tuple(map(self._report, self._cluster.snapshot()))

    def _report(self, state: WorkerState) -> WorkerReport:
        worker, seen = state.worker, self._seen.get(state.worker.name)
        return WorkerReport(
            name=worker.name,
            url=worker.url,
            model=worker.model,
            role=worker.role,
            pool=worker.pool,
            health=state.health,
            note=state.note,
            since_unix_s=None if seen is None else seen.since_unix_s,
            circuit_open=self._circuit_open(worker.ref),
            incarnation=worker.incarnation,
            steps_url=worker.steps_url,
        )

    def _report_health(self, state: WorkerState, before: _Seen | None, now_s: float) -> None:
        name = state.worker.name
        if state.health is Health.DOWN and (before is None or before.health is not Health.DOWN):
            again = f"it gets no requests and is checked again every {self._every_s:g} s"
            logger.warning("%s is down: %s; %s", name, state.note, again)
        elif state.health is not Health.UP:
            return
        elif before is None or not before.was_up:
            logger.info("%s is up and serves %s", name, state.worker.model)
        elif before.health is Health.DOWN:
            logger.info("%s is up again after %s", name, elapsed(now_s - before.since_unix_s))
        elif before.incarnation != state.worker.incarnation:
            logger.info("%s has restarted", name)

    def _report_circuit(self, name: str, before: _Seen | None) -> None:
        was_open, is_open = before is not None and before.circuit_open, self._seen[name].circuit_open
        if is_open and not was_open:
            logger.warning(
                "%s fails most of its requests: its circuit is open, one request at a time tries it", name
            )
        elif was_open and not is_open:
            logger.info("%s has recovered: its circuit is closed", name)

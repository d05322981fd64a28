"""Shows the workers of a gateway as the gateway sees them. It reads without colour."""

from __future__ import annotations

import time
from collections.abc import Sequence

from phasewise.core.units import long_duration
from phasewise.fleet.local.gateway_run import GatewayState, WorkerReport
from phasewise.report.console import out
from phasewise.report.fleet_view import print_rows

_WORDS = {"suspect": "stands still", "hung": "stands still", "unknown": "not checked yet"}
_STYLES = {"up": "green", "down": "red", "unknown": "dim"}


_CIRCUIT_OPEN = "it answers and fails most of its requests; its log says why"


def print_gateway(gateway: GatewayState) -> None:
    """A gateway and all its workers; a note stands below the line of its worker."""
    models = {worker.model for worker in gateway.workers}
    serves = f", serves {models.pop()}" if len(models) == 1 and "" not in models else ""
    head = f"gateway {gateway.url}, pid {gateway.process.pid}{serves}"
    out.print(head, style="bold", markup=False, soft_wrap=True)
    now_s = time.time()
    rows = [
        (worker.name, worker.url, state_in_words(worker, now_s), "" if serves else worker.model or "-")
        for worker in gateway.workers
    ]
    styles = [
        "yellow" if worker.circuit_open else _STYLES.get(worker.health, "yellow")
        for worker in gateway.workers
    ]
    print_rows(("worker", "url", "state", "" if serves else "model"), rows, styles)
    for worker in gateway.workers:
        if note := _note(worker):
            out.print(f"{worker.name}: {note}", style="yellow", markup=False, soft_wrap=True)


def _note(worker: WorkerReport) -> str:
    """What is to be said of the worker, without its address, which its line has."""
    return worker.note.removeprefix(f"{worker.url} ") or (_CIRCUIT_OPEN if worker.circuit_open else "")


def print_troubled(workers: Sequence[WorkerReport]) -> None:
    """A line for each worker of a fleet that its gateway does not use as usual, or has a note on."""
    now_s = time.time()
    for worker in workers:
        if not worker.serves or worker.note:
            note = f": {said}" if (said := _note(worker)) else ""
            line = f"gateway: worker {worker.name}: {state_in_words(worker, now_s)}{note}"
            out.print(line, style="yellow", markup=False, soft_wrap=True)


def state_in_words(worker: WorkerReport, now_s: float) -> str:
    """A worker's state, and since when if it does not serve."""
    words = _WORDS.get(worker.health, worker.health)
    if worker.health == "up" or worker.since_unix_s is None:
        return "up, circuit open" if worker.circuit_open else words
    since_at = time.localtime(worker.since_unix_s)
    today = time.strftime("%F", since_at) == time.strftime("%F", time.localtime(now_s))
    since = time.strftime("%H:%M:%S" if today else "%F %H:%M:%S", since_at)
    return f"{words} since {since} ({long_duration(now_s - worker.since_unix_s)})"

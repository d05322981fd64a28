"""Connects to workers, each with the key and the certificate that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phasewise.clients.http_client import Access, HttpClient, Timeouts
from phasewise.core.worker import Worker
from phasewise.scheduling.world import WorkerChange

Connect = Callable[[Worker, Timeouts], HttpClient]
"""Makes a client of a worker."""


class Engines:
    """The connections to all workers. `clients` carry requests; watches connect for themselves."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.clients: dict[str, HttpClient] = {}
        self._timeouts = timeouts
        self._access: dict[str, Access] = {}
        self._retired: list[HttpClient] = []

    def connect(self, worker: Worker, timeouts: Timeouts) -> HttpClient:
        """Another client of a worker."""
        return HttpClient(worker.url, timeouts, self._access.get(worker.name))

    def authorization(self, worker: str) -> bytes:
        """The authorization header that a worker asks for; empty if it asks for none."""
        access = self._access.get(worker) or Access()
        return access.header_lines.removeprefix(b"authorization: ").rstrip()

    def set_workers(self, change: WorkerChange, access: Mapping[str, Access]) -> None:
        """Follow a change of the workers. Requests on those that are gone may finish there."""
        for name, given in access.items():
            self._access.setdefault(name, given).become(given)
        for name in change.gone:
            self._retired.append(self.clients.pop(name))
        for worker in change.new:
            self.clients[worker.name] = self.connect(worker, self._timeouts)
        for name in self._access.keys() - access.keys():
            del self._access[name]
        for client in self._retired:
            if not client.is_busy:
                client.close()
        self._retired = [client for client in self._retired if client.is_busy]

    def close(self) -> None:
        """Close every connection for requests, including busy ones."""
        for client in (*self.clients.values(), *self._retired):
            client.close()

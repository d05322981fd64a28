"""KV transfers between engines over links that share their bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phasewise.simulator.clock import VirtualClock


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How KV moves: what each transfer takes at least, each engine's bandwidth, and the size of the KV."""

    bytes_per_s: float = 3.5e9
    floor_s: float = 0.003
    kv_bytes_per_token: int = 23_040


@dataclass(slots=True, eq=False)
class _Transfer:
    source: str
    target: str
    left_bytes: float
    done: Callable[[], None]
    rate: float = 0.0
    since_s: float = 0.0
    plan: int = 0
    """Grows with every new rate: an end that was planned for an older one does not count."""


class Links:
    """One link per engine. Transfers that share an engine, at either end, share its bandwidth equally."""

    def __init__(self, clock: VirtualClock, speed: LinkSpeed) -> None:
        self.speed = speed
        self._clock = clock
        self._by_engine: dict[str, list[_Transfer]] = {}

    def move(self, source: str, target: str, tokens: int, done: Callable[[], None]) -> None:
        """Move the KV of so many tokens."""
        transfer = _Transfer(source, target, float(tokens * self.speed.kv_bytes_per_token), done)
        self._clock.at(self._clock.now_s + self.speed.floor_s, self._begin, transfer)

    def _begin(self, transfer: _Transfer) -> None:
        transfer.since_s = self._clock.now_s
        for engine in (transfer.source, transfer.target):
            self._by_engine.setdefault(engine, []).append(transfer)
        self._share(transfer)

    def _end(self, transfer: _Transfer, plan: int) -> None:
        if plan != transfer.plan:
            return
        for engine in (transfer.source, transfer.target):
            self._by_engine[engine].remove(transfer)
        self._share(transfer)
        transfer.done()

    def _share(self, changed: _Transfer) -> None:
        """Rates change where a transfer has begun or ended."""
        now_s = self._clock.now_s
        near = {
            id(transfer): transfer
            for name in (changed.source, changed.target)
            for transfer in self._by_engine[name]
        }
        for transfer in near.values():
            busiest = max(len(self._by_engine[engine]) for engine in (transfer.source, transfer.target))
            rate = self.speed.bytes_per_s / busiest
            if rate == transfer.rate:
                continue
            transfer.left_bytes -= (now_s - transfer.since_s) * transfer.rate
            transfer.since_s, transfer.rate = now_s, rate
            transfer.plan += 1
            left_s = max(0.0, transfer.left_bytes) / rate
            self._clock.at(now_s + left_s, self._end, transfer, transfer.plan)

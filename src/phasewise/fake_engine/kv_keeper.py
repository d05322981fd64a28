"""The prefill side of hand-overs: KV that is kept until another engine has read it, or its lease is over.

It holds blocks of the engine's pool; which requests' KV is kept is the engine's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from phasewise.fake_engine.blocks import BlockPool
from phasewise.fake_engine.kv_connector import KvObserver, RemoteKv


@dataclass(slots=True)
class _Kept:
    prompt_ids: tuple[int, ...]
    blocks: list[int]
    until_s: float


class KvKeeper:
    """The KV that one incarnation of an engine keeps for others.

    `layout` is what both sides must have in common. While `hung`, it answers nobody, as a stopped process.
    `on_change` is called when others' doing has changed what is kept, or for how long.
    """

    def __init__(
        self, engine_id: str, layout: object, lease_s: float, pool: BlockPool, observer: KvObserver
    ) -> None:
        self.engine_id = engine_id
        self.layout = layout
        self.hung = False
        self.on_change: Callable[[], None] = lambda: None
        self._lease_s = lease_s
        self._pool = pool
        self._observer = observer
        self._kept: dict[str, _Kept] = {}

    @property
    def kept_requests(self) -> int:
        """Of how many requests KV is kept."""
        return len(self._kept)

    @property
    def next_expiry_s(self) -> float:
        """When the next lease is over."""
        return min((kept.until_s for kept in self._kept.values()), default=inf)

    @property
    def held_blocks(self) -> Iterator[int]:
        """Every hold on a block."""
        return (block for kept in self._kept.values() for block in kept.blocks)

    def keep(self, request_id: str, prompt_ids: tuple[int, ...], blocks: list[int], now: float) -> None:
        """Take over the blocks of a request that has ended."""
        self._kept[request_id] = _Kept(prompt_ids, blocks, now + self._lease_s)

    def claim(self, request_id: str) -> None:
        """Somebody waits for this KV and says so again and again: its lease does not end."""
        if request_id in self._kept:
            self._kept[request_id].until_s = inf

    def unclaim(self, request_id: str, now: float) -> None:
        """Who waited for it is heard of no more."""
        if request_id in self._kept:
            self._kept[request_id].until_s = now + self._lease_s
            self.on_change()

    def read(self, remote: RemoteKv, prompt_ids: tuple[int, ...]) -> bool:
        """Hand the KV over and give it up; False when what was read is not this prompt's KV."""
        kept = self._kept.get(remote.request_id)
        self.give_up(remote.request_id)
        if kept is None:
            self._observer.on_late_read()
            return False
        return kept.prompt_ids == prompt_ids and kept.blocks == list(remote.block_ids)

    def give_up(self, request_id: str) -> None:
        """Nobody will read it."""
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self._pool.release(kept.blocks)
            self.on_change()

    def expire(self, now: float) -> None:
        """Give up what nobody came for in time."""
        if self.next_expiry_s > now:
            return
        for request_id in [name for name, kept in self._kept.items() if kept.until_s <= now]:
            self.give_up(request_id)
            self._observer.on_expired()

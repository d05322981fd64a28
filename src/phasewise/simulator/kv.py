"""KV transfers between virtual engines, modelled on vLLM's NIXL connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from itertools import count
from math import inf
from typing import Protocol

from phasewise.core.errors import EngineStartFailed, UsageError
from phasewise.simulator.blocks import BlockPool

Address = tuple[str, int]


class OnLoadFailure(StrEnum):
    """What an engine does with a request whose KV it could not fetch (vLLM's kv_load_failure_policy)."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Connector:
    """How an engine transfers KV, on either side; times and sizes are those of the demo engine on a CPU."""

    lease_s: float = 30.0
    """How long unrequested KV is kept."""
    floor_s: float = 0.003
    bytes_per_s: float = 3.5e9
    kv_bytes_per_token: int = 23_040
    handshake_s: float = 0.03
    """What the first KV transfer from an engine takes longer."""
    handshake_timeout_s: float = 5.0
    """How long a fetch waits for an unknown engine when nothing listens at its address."""
    on_failure: OnLoadFailure = OnLoadFailure.FAIL
    side_port: int = 0
    """The port at which other engines ask for KV, 0 for any free one. It is no real socket."""

    def __post_init__(self) -> None:
        times_s = (self.floor_s, self.handshake_s, self.handshake_timeout_s)
        if min(times_s) < 0 or min(self.lease_s, self.bytes_per_s, self.kv_bytes_per_token) <= 0:
            raise UsageError(
                "a connector's times must not be negative",
                hint="lease_s, bytes_per_s and kv_bytes_per_token must be above 0",
            )

    def transfer_s(self, kv_bytes: int) -> float:
        """How long so much KV takes between engines that have met."""
        return self.floor_s + kv_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """Where the KV of a prompt is, in the terms of the engine that keeps it."""

    address: Address
    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]
    cached_tokens: int | None = None
    """How much of the prompt the keeper had found cached, which the fetcher reports as its own."""


class KvObserver:
    """Gets notified about KV transfers; this one ignores all."""

    def on_transfer(self, seconds: float, kv_bytes: int, blocks: int) -> None:
        """KV has arrived."""

    def on_failed_transfer(self) -> None:
        """KV did not arrive."""

    def on_expired(self) -> None:
        """The lease ended before the KV was fetched."""

    def on_late_read(self) -> None:
        """KV was read after it was released."""


class KvTroubles(Protocol):
    """Faults in KV transfers that this engine fetches."""

    def take_kv_rejection(self) -> bool:
        """Whether this transfer fails; if so, it uses up one failure."""

    @property
    def kv_hung(self) -> bool:
        """Whether transfers hang now."""

    @property
    def kv_factor(self) -> float:
        """How many times longer a transfer takes now."""


class Untroubled:
    """No faults."""

    kv_hung = False
    kv_factor = 1.0

    def take_kv_rejection(self) -> bool:
        """Whether this transfer fails."""
        return False


# --- The prefill side of KV transfers: KV stays in the engine's block pool until another engine has read it,
# or its lease ends.


@dataclass(slots=True)
class _HeldBlocks:
    prompt_ids: tuple[int, ...]
    blocks: list[int]
    until_s: float


class KvKeeper:
    """The KV that one incarnation of an engine keeps for others, which find it from now on.

    While `hung`, it does not answer, like a stopped process. `on_change` is called when another engine
    changes what is kept, or for how long.
    """

    def __init__(self, link: KvLink, pool: BlockPool) -> None:
        self.link = link
        self.hung = False
        self.on_change: Callable[[], None] = lambda: None
        self._pool = pool
        self._kept: dict[str, _HeldBlocks] = {}
        link.channels.open(link.address, self)

    @property
    def kept_requests(self) -> int:
        """How many requests' KV is kept."""
        return len(self._kept)

    @property
    def next_expiry_s(self) -> float:
        """When the next lease ends."""
        return min((kept.until_s for kept in self._kept.values()), default=inf)

    @property
    def held_blocks(self) -> Iterator[int]:
        """Every held block, once per hold."""
        return (block for kept in self._kept.values() for block in kept.blocks)

    def keep(self, request_id: str, prompt_ids: tuple[int, ...], blocks: list[int], now: float) -> None:
        """Take over the blocks of a request that has ended."""
        self._kept[request_id] = _HeldBlocks(prompt_ids, blocks, now + self.link.connector.lease_s)

    def claim(self, request_id: str) -> None:
        """An engine waits for this KV and renews its lease: it does not end."""
        if request_id in self._kept:
            self._kept[request_id].until_s = inf

    def unclaim(self, request_id: str, now: float) -> None:
        """The engine that waited no longer renews the lease."""
        if request_id in self._kept:
            self._kept[request_id].until_s = now + self.link.connector.lease_s
            self.on_change()

    def read(self, remote: RemoteKv, prompt_ids: tuple[int, ...]) -> bool:
        """Transfer the KV and release it; False if its blocks do not hold this prompt's KV."""
        kept = self._kept.get(remote.request_id)
        self.give_up(remote.request_id)
        if kept is None:
            self.link.observer.on_late_read()
            return False
        return kept.prompt_ids == prompt_ids and kept.blocks == list(remote.block_ids)

    def give_up(self, request_id: str) -> None:
        """Release KV that no engine will read."""
        kept = self._kept.pop(request_id, None)
        if kept is not None:
            self._pool.release(kept.blocks)
            self.on_change()

    def expire(self, now: float) -> None:
        """Release KV whose lease has ended."""
        if self.next_expiry_s > now:
            return
        for request_id in [name for name, kept in self._kept.items() if kept.until_s <= now]:
            self.give_up(request_id)
            self.link.observer.on_expired()


# --- The decode side of KV transfers: KV on its way from another engine, and how the transfer ends.

FIRST_SIDE_PORT = 5600
LOOK_AGAIN_S = 0.005


class SideChannels:
    """Which engine answers at which address: engines of one process, as nothing is really sent."""

    def __init__(self) -> None:
        self._open: dict[Address, KvKeeper] = {}
        self._numbers = count(FIRST_SIDE_PORT)

    def free_port(self) -> int:
        """A number that was not given out before."""
        return next(self._numbers)

    def open(self, address: Address, keeper: KvKeeper) -> None:
        """Register a keeper at an address."""
        if address in self._open:
            raise EngineStartFailed(
                f"the side channel {address[0]}:{address[1]} belongs to another fake engine",
                hint="choose another side_port, or 0 for any free one",
            )
        self._open[address] = keeper

    def close(self, address: Address) -> None:
        """Remove a keeper."""
        self._open.pop(address, None)

    def find(self, address: Address) -> KvKeeper | None:
        """The keeper at this address."""
        return self._open.get(address)


class FetchState(Enum):
    """The state of a fetch."""

    UNDER_WAY = auto()
    LANDED = auto()
    SPOILT = auto()
    """It arrived, but it is the wrong KV, which no engine could notice."""
    FAILED = auto()


@dataclass(slots=True)
class Fetch:
    """One prompt's KV on its way; `ends_s` is when its state changes next."""

    remote: RemoteKv
    prompt_ids: tuple[int, ...]
    blocks: int
    kv_bytes: int
    transfer_s: float
    ends_s: float
    doomed: bool


class KvFetcher:
    """What one incarnation of an engine fetches from others."""

    def __init__(self, link: KvLink) -> None:
        self._link = link
        self._met: set[str] = set()

    def claim(self, remote: RemoteKv) -> None:
        """Hold the lease of the KV."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.claim(remote.request_id)

    def unclaim(self, remote: RemoteKv, now: float) -> None:
        """Let the lease of the KV run out."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.unclaim(remote.request_id, now)

    def cancel(self, remote: RemoteKv) -> None:
        """Cancel a fetch."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.give_up(remote.request_id)

    def begin(
        self, remote: RemoteKv, prompt_ids: tuple[int, ...], blocks: int, block_size: int, now: float
    ) -> Fetch:
        """Start to fetch the KV of so many blocks."""
        kv_bytes = blocks * block_size * self._link.connector.kv_bytes_per_token
        met = remote.engine_id in self._met
        keeper = self._keeper_of(remote)
        doomed = (
            keeper is None
            or keeper.link.layout != self._link.layout
            or self._link.troubles.take_kv_rejection()
        )
        if not doomed:
            self._met.add(remote.engine_id)
            transfer_s = self._link.connector.transfer_s(kv_bytes) * self._link.troubles.kv_factor
            wait_s = transfer_s + (0.0 if met else self._link.connector.handshake_s)
        else:
            transfer_s = 0.0
            silent = self._link.channels.find(remote.address) is None and not met
            wait_s = self._link.connector.handshake_timeout_s if silent else self._link.connector.floor_s
        return Fetch(remote, prompt_ids, blocks, kv_bytes, transfer_s, now + wait_s, doomed)

    def look(self, fetch: Fetch, now: float) -> FetchState:
        """The state of a fetch; KV that has arrived is released by its keeper."""
        if now < fetch.ends_s:
            return FetchState.UNDER_WAY
        keeper = self._keeper_of(fetch.remote)
        if self._link.troubles.kv_hung or (keeper is not None and keeper.hung):
            fetch.ends_s = now + LOOK_AGAIN_S
            return FetchState.UNDER_WAY
        if fetch.doomed or keeper is None:
            self._link.observer.on_failed_transfer()
            return FetchState.FAILED
        self._link.observer.on_transfer(fetch.transfer_s, fetch.kv_bytes, fetch.blocks)
        true = keeper.read(fetch.remote, fetch.prompt_ids)
        return FetchState.LANDED if true else FetchState.SPOILT

    def _keeper_of(self, remote: RemoteKv) -> KvKeeper | None:
        """The keeper, unless it is dead or another incarnation listens at its address."""
        keeper = self._link.channels.find(remote.address)
        return keeper if keeper is not None and keeper.link.engine_id == remote.engine_id else None


# --- One incarnation's connection to other engines: its name, its address and its faults.


@dataclass(frozen=True, slots=True)
class KvLink:
    """What a virtual engine needs to keep KV for others and to fetch theirs.

    Only engines with the same `layout` (mainly the model) can read each other's KV.
    """

    engine_id: str
    address: Address
    channels: SideChannels
    connector: Connector = field(default_factory=Connector)
    layout: object = None
    troubles: KvTroubles = field(default_factory=Untroubled)
    observer: KvObserver = field(default_factory=KvObserver)

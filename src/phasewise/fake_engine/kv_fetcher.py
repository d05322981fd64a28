"""The decode side of hand-overs: KV that is under way from another engine, how long, and what comes of it.

The engine that fetches decides where the KV is to lie; what is kept, and for whom, is kv_keeper.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

from phasewise.errors import EngineStartFailed
from phasewise.fake_engine.kv_connector import Address, Connector, KvObserver, KvTroubles, RemoteKv
from phasewise.fake_engine.kv_keeper import KvKeeper

FIRST_SIDE_PORT = 5600
LOOK_AGAIN_S = 0.005


class SideChannels:
    """Who can be asked for KV at which address: the engines of one process, since nothing is sent."""

    def __init__(self) -> None:
        self._open: dict[Address, KvKeeper] = {}
        self._numbers = count(FIRST_SIDE_PORT)

    def free_port(self) -> int:
        """A number that nobody was given before."""
        return next(self._numbers)

    def open(self, address: Address, keeper: KvKeeper) -> None:
        """From now on it is found here."""
        if address in self._open:
            raise EngineStartFailed(
                f"the side channel {address[0]}:{address[1]} is another fake engine's",
                hint="choose another side_port, or 0 for any free one",
            )
        self._open[address] = keeper

    def close(self, address: Address) -> None:
        """It has gone."""
        self._open.pop(address, None)

    def find(self, address: Address) -> KvKeeper | None:
        """Who listens there."""
        return self._open.get(address)


class FetchState(Enum):
    """How far a fetch has come."""

    UNDER_WAY = auto()
    LANDED = auto()
    SPOILT = auto()
    """It landed, but it is not the KV that was wanted, and no engine could tell."""
    FAILED = auto()


@dataclass(slots=True)
class Fetch:
    """One prompt's KV under way; `ends_s` is when there will be something to see."""

    remote: RemoteKv
    prompt_ids: tuple[int, ...]
    blocks: int
    kv_bytes: int
    transfer_s: float
    ends_s: float
    doomed: bool


class KvFetcher:
    """What one incarnation of an engine fetches from others."""

    def __init__(
        self,
        connector: Connector,
        layout: object,
        channels: SideChannels,
        troubles: KvTroubles,
        observer: KvObserver,
    ) -> None:
        self._connector = connector
        self._layout = layout
        self._channels = channels
        self._troubles = troubles
        self._observer = observer
        self._met: set[str] = set()

    def claim(self, remote: RemoteKv) -> None:
        """Say that the KV is waited for."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.claim(remote.request_id)

    def unclaim(self, remote: RemoteKv, now: float) -> None:
        """Say nothing any more: its lease runs."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.unclaim(remote.request_id, now)

    def cancel(self, remote: RemoteKv) -> None:
        """It is not wanted any more."""
        keeper = self._keeper_of(remote)
        if keeper is not None:
            keeper.give_up(remote.request_id)

    def begin(
        self, remote: RemoteKv, prompt_ids: tuple[int, ...], blocks: int, block_size: int, now: float
    ) -> Fetch:
        """Ask for the KV of so many blocks."""
        kv_bytes = blocks * block_size * self._connector.kv_bytes_per_token
        met = remote.engine_id in self._met
        keeper = self._keeper_of(remote)
        doomed = keeper is None or keeper.layout != self._layout or self._troubles.take_kv_refusal()
        if not doomed:
            self._met.add(remote.engine_id)
            transfer_s = self._connector.transfer_s(kv_bytes) * self._troubles.kv_factor
            wait_s = transfer_s + (0.0 if met else self._connector.handshake_s)
        else:
            transfer_s = 0.0
            silent = self._channels.find(remote.address) is None and not met
            wait_s = self._connector.handshake_timeout_s if silent else self._connector.floor_s
        return Fetch(remote, prompt_ids, blocks, kv_bytes, transfer_s, now + wait_s, doomed)

    def look(self, fetch: Fetch, now: float) -> FetchState:
        """See how far it has come; KV that has landed is given up by its keeper."""
        if now < fetch.ends_s:
            return FetchState.UNDER_WAY
        keeper = self._keeper_of(fetch.remote)
        if self._troubles.kv_hung or (keeper is not None and keeper.hung):
            fetch.ends_s = now + LOOK_AGAIN_S
            return FetchState.UNDER_WAY
        if fetch.doomed or keeper is None:
            self._observer.on_failed_transfer()
            return FetchState.FAILED
        self._observer.on_transfer(fetch.transfer_s, fetch.kv_bytes, fetch.blocks)
        true = keeper.read(fetch.remote, fetch.prompt_ids)
        return FetchState.LANDED if true else FetchState.SPOILT

    def _keeper_of(self, remote: RemoteKv) -> KvKeeper | None:
        """Whoever keeps it, unless that is dead or another incarnation listens there."""
        keeper = self._channels.find(remote.address)
        return keeper if keeper is not None and keeper.engine_id == remote.engine_id else None

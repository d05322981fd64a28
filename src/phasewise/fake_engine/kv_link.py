"""One incarnation's place among engines that hand over KV: its name, its address and how it gets on there."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.fake_engine.blocks import BlockPool
from phasewise.fake_engine.kv_connector import (
    Address,
    Connector,
    KvObserver,
    KvTroubles,
    Unobserved,
    Untroubled,
)
from phasewise.fake_engine.kv_fetcher import KvFetcher, SideChannels
from phasewise.fake_engine.kv_keeper import KvKeeper


@dataclass(frozen=True, slots=True)
class KvLink:
    """What a virtual engine needs to keep KV for others and to fetch theirs.

    Only engines with the same `layout` (the model, above all) can read each other's KV.
    """

    engine_id: str
    address: Address
    channels: SideChannels
    connector: Connector = field(default_factory=Connector)
    layout: object = None
    troubles: KvTroubles = field(default_factory=Untroubled)
    observer: KvObserver = field(default_factory=Unobserved)

    def open_keeper(self, pool: BlockPool) -> KvKeeper:
        """The prefill side, which others find from now on."""
        keeper = KvKeeper(self.engine_id, self.layout, self.connector.lease_s, pool, self.observer)
        self.channels.open(self.address, keeper)
        return keeper

    def make_fetcher(self) -> KvFetcher:
        """The decode side."""
        return KvFetcher(self.connector, self.layout, self.channels, self.troubles, self.observer)

"""What the two sides of a hand-over of KV agree on, as engines with vLLM's NIXL connector do.

Sizes, times and the terms in which one side points the other to its blocks; who keeps and who fetches stands
in kv_keeper.py and kv_fetcher.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from phasewise.errors import ConfigError

Address = tuple[str, int]


class OnLoadFailure(StrEnum):
    """What an engine does with a request whose KV it could not fetch (vLLM's kv_load_failure_policy)."""

    FAIL = "fail"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Connector:
    """How an engine hands over KV, on either side; times and sizes are those of the demo engine on a CPU."""

    lease_s: float = 30.0
    """How long KV is kept that nobody has asked for."""
    floor_s: float = 0.003
    bytes_per_s: float = 3.5e9
    kv_bytes_per_token: int = 23_040
    handshake_s: float = 0.03
    """What the first hand-over from an engine takes longer."""
    handshake_timeout_s: float = 5.0
    """How long an engine that was never met is waited for where nobody listens."""
    on_failure: OnLoadFailure = OnLoadFailure.FAIL
    side_port: int = 0
    """Where the others ask for KV; a number that is no socket, 0 for any that is free."""

    def __post_init__(self) -> None:
        times_s = (self.floor_s, self.handshake_s, self.handshake_timeout_s)
        if min(times_s) < 0 or min(self.lease_s, self.bytes_per_s, self.kv_bytes_per_token) <= 0:
            raise ConfigError(
                "a connector's times must not be negative",
                hint="lease_s, bytes_per_s and kv_bytes_per_token must be above 0",
            )

    def transfer_s(self, kv_bytes: int) -> float:
        """How long so much KV is under way between engines that know each other."""
        return self.floor_s + kv_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """Where the KV of a prompt lies, in the words of the engine that keeps it."""

    address: Address
    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]
    cached_tokens: int | None = None
    """What the keeper had found cached of the prompt, which the fetcher then reports as its own."""


class KvObserver(Protocol):
    """Who is told what becomes of hand-overs."""

    def on_transfer(self, seconds: float, kv_bytes: int, blocks: int) -> None:
        """KV has come."""

    def on_failed_transfer(self) -> None:
        """KV did not come."""

    def on_expired(self) -> None:
        """Nobody fetched the KV within its lease."""

    def on_late_read(self) -> None:
        """KV was read that had been given up."""


class KvTroubles(Protocol):
    """What is to go wrong with hand-overs that this engine fetches."""

    def take_kv_refusal(self) -> bool:
        """Whether this one fails; it counts as one that did."""

    @property
    def kv_hung(self) -> bool:
        """Whether none ends now."""

    @property
    def kv_factor(self) -> float:
        """How many times longer one takes now."""


class Unobserved:
    """Tells nobody."""

    def on_transfer(self, seconds: float, kv_bytes: int, blocks: int) -> None:
        """KV has come."""

    def on_failed_transfer(self) -> None:
        """KV did not come."""

    def on_expired(self) -> None:
        """Nobody fetched the KV within its lease."""

    def on_late_read(self) -> None:
        """KV was read that had been given up."""


class Untroubled:
    """Nothing goes wrong."""

    kv_hung = False
    kv_factor = 1.0

    def take_kv_refusal(self) -> bool:
        """Whether this one fails."""
        return False

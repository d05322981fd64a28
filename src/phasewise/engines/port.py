"""The port: what the product needs to know of a kind of engine. An adapter is a module that has it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from phasewise.core.engine_metrics import MetricsPage, MetricsSnapshot
from phasewise.engines.listed_requests import Listing


class Ability(StrEnum):
    """What not every kind of engine can do."""

    TRANSFER_KV = "transfer_kv"
    SALT_CACHE = "salt_cache"
    BE_CALIBRATED = "be_calibrated"
    QUANTIZE = "quantize"
    BE_VERIFIED = "be_verified"


class Engine(Protocol):
    """A kind of engine. What it does not have is None or empty: no reading is made up."""

    TITLE: str
    """Its name for people."""
    SERVER: bytes | None
    """What it calls itself in the `Server` header of its replies, if no other server does."""
    PREFIX: str
    """What the names of its metrics begin with."""
    WITHOUT_METRICS: str
    """What to do if it answers /metrics with an error."""
    TIMINGS: str
    """The field of a reply that has the times of its phases."""
    PHASES_MS: Mapping[str, str]
    """The times there, in milliseconds, each with its field of `EngineAccount`."""
    WITHOUT_STEPS: str
    """Why its steps are not seen, and what to do."""
    LISTING_PATH: str | None
    """Where it lists the requests that it computes, if it does."""
    CAN: frozenset[Ability]
    """What it can do of what not every kind can."""
    INFERENCE_PATHS: Mapping[str, tuple[str, ...]]
    """Paths of its API that the gateway forwards without knowing their fields, with their methods."""
    FLAGS: Mapping[str, str]
    """The flag of each of its settings, by our names: the levers of a fleet file first."""

    def parse_metrics(self, text: str, taken_at_unix_s: float) -> MetricsSnapshot:
        """All its metrics."""
        ...

    def read_page(self, page: bytes, at_unix_s: float) -> MetricsPage:
        """What is read of its metrics several times a second, in one pass."""
        ...

    def parse_listing(self, body: bytes) -> Listing | None:
        """The requests that it computes, by its reply at that path; None if the reply does not hold them."""
        ...

    def number_format_of(self, command: Sequence[str]) -> str | None:
        """The number format that an engine with this command line computes in; None if it is another's."""
        ...

    def settings_of(self, command: Sequence[str]) -> Mapping[str, int]:
        """The settings on a command line that its metrics do not show; empty if it is another's."""
        ...

    def flags(self, name: str, value: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - each has its own type
        """The arguments that give a setting this value; None if it has no such setting."""
        ...

"""Workers: the addresses where a phase can be served. How loaded they are is the ledger's to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Which phases a worker takes."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


DEFAULT_SLOTS = 256
"""Requests a worker is given at once; more wait in the gateway, where they can still go elsewhere."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One place that can serve: an engine, one of its data-parallel ranks, one of its adapters.

    A restarted engine is another worker: its `incarnation` differs, and nothing learned of the old one
    (cache contents, speed, failures) holds for the new one.
    """

    name: str
    url: str
    model: str
    incarnation: str
    role: Role = Role.MIXED
    pool: str = "default"
    lora: str | None = None
    rank: int = 0
    steps_url: str | None = None
    slots: int = DEFAULT_SLOTS

    @property
    def ref(self) -> WorkerRef:
        """What a record keeps of this worker."""
        return WorkerRef(self.name, self.incarnation)


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """The part of a worker that a record keeps: enough to tell it, and its incarnation, from all others."""

    name: str
    incarnation: str

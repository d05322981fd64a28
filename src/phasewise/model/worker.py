"""Workers: the addresses where a phase can be served. How loaded they are is the ledger's to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


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
    ref: WorkerRef = field(init=False, repr=False, compare=False)
    """What a record keeps of this worker; made once, as every placement asks every worker for it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", WorkerRef(self.name, self.incarnation))


class WorkerRef(NamedTuple):
    """The part of a worker that a record keeps: enough to tell it, and its incarnation, from all others.

    A tuple, because what is known of workers is kept by it and a tuple is looked up fastest.
    """

    name: str
    incarnation: str

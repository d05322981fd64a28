"""Workers: the addresses that serve a phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """Which phases a worker takes."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


UNKNOWN_MODEL = ""
"""The model of a worker that has not said yet what it serves: no request can ask for it."""
DEFAULT_SLOTS = 256
"""Requests that a worker gets at once; more wait in the gateway, where they can still go elsewhere."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One address that can serve: an engine, or one of its adapters under the adapter's name.

    A restarted engine is another worker: its `incarnation` differs, and nothing learned about the old one
    (cache contents, speed, failures) holds for the new one. Workers of equal `weights` would write the same
    answer: they have the same weights in the same number format.
    """

    name: str
    url: str
    model: str
    incarnation: str
    role: Role = Role.MIXED
    pool: str = "default"
    steps_url: str | None = None
    slots: int = DEFAULT_SLOTS
    weights: str = ""
    ref: WorkerRef = field(init=False, repr=False, compare=False)
    """This worker's key in records; made once, because every placement reads it for every worker."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ref", WorkerRef(self.name, self.incarnation))


class WorkerRef(NamedTuple):
    """The part of a worker that records keep: it identifies the worker and its incarnation.

    A tuple, because it is the key of what is learned about workers and tuples are looked up fastest.
    """

    name: str
    incarnation: str

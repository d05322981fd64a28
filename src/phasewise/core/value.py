"""Dataclasses for values that are created many times a second and never changed.

A frozen dataclass takes four times as long to create, because it checks every field assignment. Type
checkers enforce immutability here instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def value(cls: type[_Class]) -> type[_Class]:
    """A class like `dataclass(frozen=True, slots=True)`, without the check at run time."""
    return dataclass(slots=True, unsafe_hash=True)(cls)

"""The recorded form of what enters and leaves scheduling: plain JSON types.

Fields that hold their default are left out. No decision depends on the fields that identify a key, a lease or
a text: they stay empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from phasewise.core import errors, kv_transfer, ports, worker
from phasewise.core import request as requests
from phasewise.scheduling import ledger, rules, steps, world
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.queue import Ticket

_PRIVATE = {"key_id": "", "lease_id": "", "params": "", "prefix_marks": (), "text_marks": ()}
_MODULES = (errors, kv_transfer, ports, worker, requests, rules, steps, ledger, world)
_KINDS = {
    kind.__name__: kind
    for module in _MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum | worker.WorkerRef))
}


def to_plain(given: Any) -> Any:  # noqa: ANN401 - of _KINDS, or plain
    """The recorded form of a value."""
    if isinstance(given, Enum):
        return {"is": type(given).__name__, "value": given.value}
    if isinstance(given, worker.WorkerRef):
        return {"is": "WorkerRef", "name": given.name, "incarnation": given.incarnation}
    if isinstance(given, list | tuple):
        return [to_plain(each) for each in given]
    if isinstance(given, Mapping):
        return {"is": "", "items": [[name, to_plain(own)] for name, own in given.items()]}
    if not is_dataclass(given) or isinstance(given, type):
        return given
    record = {"is": type(given).__name__}
    for name, default in _defaults(type(given)).items():
        own = _PRIVATE[name] if name in _PRIVATE else getattr(given, name)
        if own != default:
            record[name] = to_plain(own)
    return record


def from_plain(plain: Any) -> Any:  # noqa: ANN401 - as above
    """The value of a recorded form; lists become tuples."""
    if isinstance(plain, list):
        return tuple(map(from_plain, plain))
    if not isinstance(plain, dict):
        return plain
    named = {name: from_plain(own) for name, own in plain.items() if name != "is"}
    return _KINDS[plain["is"]](**named) if plain["is"] else dict(named["items"])


@cache
def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Of the fields that a value is made from; a sentinel that equals nothing where there is none."""
    return {field.name: field.default for field in fields(kind) if field.init}


def shown(given: Any) -> Any:  # noqa: ANN401 - a step, or a part of one
    """A step for comparison: workers by name, tickets by number, of a trial and of KV that there is one."""
    if isinstance(given, worker.Worker):
        return given.name
    if isinstance(given, Ticket):
        return given.number
    if isinstance(given, BreakerTrial | kv_transfer.KvTicket):
        return True
    if isinstance(given, list | tuple):
        return [shown(each) for each in given]
    if is_dataclass(given) and not isinstance(given, type):
        parts = {name: shown(getattr(given, name)) for name in _defaults(type(given)) if name not in _PRIVATE}
        return {"is": type(given).__name__, **parts}
    return None if callable(given) else given

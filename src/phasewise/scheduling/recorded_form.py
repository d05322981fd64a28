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

from phasewise.core import errors, kv_transfer, limits, worker
from phasewise.core import request as requests
from phasewise.scheduling import ledger, rules, steps, world
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.queue import Ticket

_PRIVATE = {"key_id": "", "lease_id": "", "params": "", "prefix_marks": (), "text_marks": ()}
_MODULES = (errors, kv_transfer, limits, worker, requests, rules, steps, ledger, world)
_KINDS = {
    kind.__name__: kind
    for module in _MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Enum | worker.WorkerRef))
}


def to_plain(it: Any) -> Any:  # noqa: ANN401 - of _KINDS, or plain
    """The recorded form of a value."""
    if isinstance(it, Enum):
        return {"is": type(it).__name__, "value": it.value}
    if isinstance(it, worker.WorkerRef):
        return {"is": "WorkerRef", "name": it.name, "incarnation": it.incarnation}
    if isinstance(it, list | tuple):
        return [to_plain(each) for each in it]
    if isinstance(it, Mapping):
        return {"is": "", "items": [[name, to_plain(own)] for name, own in it.items()]}
    if not is_dataclass(it) or isinstance(it, type):
        return it
    record = {"is": type(it).__name__}
    for name, default in _defaults(type(it)).items():
        own = _PRIVATE[name] if name in _PRIVATE else getattr(it, name)
        if own != default:
            record[name] = to_plain(own)
    return record


def from_plain(it: Any) -> Any:  # noqa: ANN401 - as above
    """The value of a recorded form; lists become tuples."""
    if isinstance(it, list):
        return tuple(map(from_plain, it))
    if not isinstance(it, dict):
        return it
    named = {name: from_plain(own) for name, own in it.items() if name != "is"}
    return _KINDS[it["is"]](**named) if it["is"] else dict(named["items"])


@cache
def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Of the fields that a value is made from; a sentinel that equals nothing where there is none."""
    return {it.name: it.default for it in fields(kind) if it.init}


def shown(it: Any) -> Any:  # noqa: ANN401 - a step, or a part of one
    """A step for comparison: workers by name, tickets by number, of a trial and of KV that there is one."""
    if isinstance(it, worker.Worker):
        return it.name
    if isinstance(it, Ticket):
        return it.number
    if isinstance(it, BreakerTrial | kv_transfer.KvTicket):
        return True
    if isinstance(it, list | tuple):
        return [shown(each) for each in it]
    if is_dataclass(it) and not isinstance(it, type):
        parts = {name: shown(getattr(it, name)) for name in _defaults(type(it)) if name not in _PRIVATE}
        return {"is": type(it).__name__, **parts}
    return None if callable(it) else it

"""Faults on command: what is to go wrong, and whether it goes wrong now.

Only the books are kept here; dying, hanging and cutting are done by those who hold the connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import prod
from typing import Any

from phasewise.errors import ConfigError


class FaultKind(StrEnum):
    """What can go wrong."""

    DIE = "die"
    """Stop listening and drop every connection, once `after_tokens` more tokens were written."""
    HANG = "hang"
    """Take connections but never answer, and step no more, once `after_tokens` more tokens were written."""
    CUT = "cut"
    """Close the connection of the next `times` answers after `after_tokens` of their tokens."""
    SLOW = "slow"
    """Steps take `factor` times as long; the next `times` requests reach the engine `delay_s` late."""
    ERROR = "error"
    """Answer the next `times` requests with status 500."""
    POISON = "poison"
    """Die whenever a prompt contains `marker`, after `after_tokens` tokens of that answer."""
    KV_REFUSE = "kv_refuse"
    """The next `times` fetches of KV from another engine fail."""
    KV_HANG = "kv_hang"
    """KV that is fetched from other engines does not come."""
    KV_SLOW = "kv_slow"
    """KV that is fetched from other engines takes `factor` times as long."""


_FOR_REQUESTS = frozenset({FaultKind.CUT, FaultKind.SLOW, FaultKind.ERROR})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is to go wrong. `times` of None means until it is cleared."""

    kind: FaultKind
    after_tokens: int = 0
    times: int | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    marker: str = ""
    restart_after_s: float | None = None
    """How long a death lasts; None means until somebody restarts the engine."""

    def __post_init__(self) -> None:
        if self.after_tokens < 0 or self.factor <= 0 or self.delay_s < 0 or (self.times or 0) < 0:
            raise ConfigError("a fault's numbers must not be negative", hint="factor must be above 0")
        if self.kind is FaultKind.POISON and not self.marker:
            raise ConfigError("a poison needs a marker", hint='add "marker": "some text" to look for')


def fault_from_json(data: object) -> Fault:
    """A fault as it came over the wire."""
    accepted = {field.name for field in fields(Fault)}
    if not isinstance(data, Mapping) or not set(data) <= accepted:
        raise ConfigError("this is not a fault", hint=f"accepted keys: {', '.join(sorted(accepted))}")
    try:
        return Fault(**{**data, "kind": FaultKind(data.get("kind", ""))})
    except ValueError:
        kinds = ", ".join(FaultKind)
        raise ConfigError(f"unknown kind of fault {data.get('kind')!r}", hint=f"accepted: {kinds}") from None
    except TypeError as error:
        raise ConfigError(f"this is not a fault ({error})") from None


@dataclass(frozen=True, slots=True)
class RequestFaults:
    """What is to go wrong with one request."""

    error: bool = False
    delay_s: float = 0.0
    cut_after_tokens: int | None = None
    poison: Fault | None = None


@dataclass(slots=True)
class _Armed:
    fault: Fault
    times_left: int | None
    tokens_left: int


class FaultBoard:
    """The faults of one engine. It outlives the engine's deaths: a poison stays poisonous."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._armed: list[_Armed] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Arm a fault beside those that are armed."""
        self._armed.append(_Armed(fault, fault.times, fault.after_tokens))

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        self._armed.clear()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is armed."""
        return tuple(armed.fault for armed in self._armed)

    @property
    def hung(self) -> bool:
        """Whether the engine hangs now."""
        return any(armed.fault.kind is FaultKind.HANG and armed.tokens_left <= 0 for armed in self._armed)

    @property
    def step_factor(self) -> float:
        """How many times longer a step takes now."""
        return self._factor(FaultKind.SLOW)

    @property
    def kv_factor(self) -> float:
        """How many times longer a fetch of KV takes now."""
        return self._factor(FaultKind.KV_SLOW)

    @property
    def kv_hung(self) -> bool:
        """Whether no fetch of KV ends now."""
        return any(armed.fault.kind is FaultKind.KV_HANG for armed in self._armed)

    def take_kv_refusal(self) -> bool:
        """Whether a fetch that begins now is to fail; it counts as one that did."""
        for armed in self._armed:
            if armed.fault.kind is FaultKind.KV_REFUSE:
                return self._use_up(armed)
        return False

    def count_tokens(self, count: int) -> None:
        """The engine has written tokens."""
        for armed in self._armed:
            if armed.fault.kind in {FaultKind.DIE, FaultKind.HANG}:
                armed.tokens_left -= count

    def take_death(self) -> Fault | None:
        """The death that is due now; it is disarmed by this, since one dies of it once."""
        for armed in self._armed:
            if armed.fault.kind is FaultKind.DIE and armed.tokens_left <= 0:
                self._armed.remove(armed)
                return armed.fault
        return None

    def for_request(self, prompt_text: str) -> RequestFaults:
        """What goes wrong with this request; each fault that counts requests counts it."""
        error, delay_s, cut_after, poison = False, 0.0, None, None
        for armed in tuple(self._armed):
            fault = armed.fault
            if fault.kind is FaultKind.POISON:
                poison = fault if fault.marker in prompt_text else poison
                continue
            if fault.kind not in _FOR_REQUESTS or not self._use_up(armed):
                continue
            error = error or fault.kind is FaultKind.ERROR
            delay_s += fault.delay_s if fault.kind is FaultKind.SLOW else 0.0
            if fault.kind is FaultKind.CUT:
                cut_after = fault.after_tokens
        return RequestFaults(error, delay_s, cut_after, poison)

    def _factor(self, kind: FaultKind) -> float:
        return prod(armed.fault.factor for armed in self._armed if armed.fault.kind is kind)

    def _use_up(self, armed: _Armed) -> bool:
        if armed.times_left is None or (armed.fault.kind is FaultKind.SLOW and not armed.fault.delay_s):
            return True
        armed.times_left -= 1
        if armed.times_left <= 0:
            self._armed.remove(armed)
        return armed.times_left >= 0


def fault_to_json(fault: Fault) -> dict[str, Any]:
    """A fault for the wire."""
    return asdict(fault)

"""Faults on command: which are armed, and whether they apply now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from math import prod

from phasewise.core.errors import ConfigError


class FaultKind(StrEnum):
    """The kinds of fault."""

    DIE = "die"
    """Stop listening and drop every connection, after `after_tokens` more tokens."""
    HANG = "hang"
    """Accept connections but never answer, and stop stepping, after `after_tokens` more tokens."""
    CORE_HANG = "core_hang"
    """Stop stepping after `after_tokens` more tokens, and answer what needs no step: /health and /metrics."""
    CUT = "cut"
    """Close the connection of the next `times` answers after `after_tokens` of their tokens."""
    SLOW = "slow"
    """Steps take `factor` times as long; the next `times` requests reach the engine `delay_s` late."""
    ERROR = "error"
    """Answer the next `times` requests with status 500."""
    POISON = "poison"
    """Die whenever a prompt contains `marker`, after `after_tokens` tokens of that answer."""
    KV_REJECT = "kv_reject"
    """The next `times` fetches of KV from another engine fail."""
    KV_HANG = "kv_hang"
    """KV that is fetched from other engines does not arrive."""
    KV_SLOW = "kv_slow"
    """KV that is fetched from other engines takes `factor` times as long."""


_FOR_REQUESTS = frozenset({FaultKind.CUT, FaultKind.SLOW, FaultKind.ERROR})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `times` of None means until it is cleared."""

    kind: FaultKind
    after_tokens: int = 0
    times: int | None = None
    factor: float = 1.0
    delay_s: float = 0.0
    marker: str = ""
    restart_after_s: float | None = None
    """How long the engine stays dead; None means until it is restarted."""

    def __post_init__(self) -> None:
        if self.after_tokens < 0 or self.factor <= 0 or self.delay_s < 0 or (self.times or 0) < 0:
            raise ConfigError("a fault's numbers must not be negative", hint="factor must be above 0")
        if self.kind is FaultKind.POISON and not self.marker:
            raise ConfigError("a poison fault needs a marker", hint='add "marker": "text in the prompt"')


def fault_from_json(data: object) -> Fault:
    """A fault from its JSON object."""
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
    """The faults that apply to one request."""

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
    """The faults of one engine. They stay armed when the engine dies and restarts."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._armed: list[_Armed] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Arm a fault in addition to those that are armed."""
        self._armed.append(_Armed(fault, fault.times, fault.after_tokens))

    def clear(self) -> None:
        """Disarm all faults."""
        self._armed.clear()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The armed faults."""
        return tuple(armed.fault for armed in self._armed)

    @property
    def hung(self) -> bool:
        """Whether the engine hangs now."""
        return self._is_due(FaultKind.HANG)

    @property
    def core_hung(self) -> bool:
        """Whether it makes no steps now, though it answers."""
        return self._is_due(FaultKind.CORE_HANG)

    def _is_due(self, kind: FaultKind) -> bool:
        return any(armed.fault.kind is kind and armed.tokens_left <= 0 for armed in self._armed)

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
        """Whether fetches of KV hang now."""
        return any(armed.fault.kind is FaultKind.KV_HANG for armed in self._armed)

    def take_kv_rejection(self) -> bool:
        """Whether a fetch that starts now fails; if so, it uses up one failure."""
        for armed in self._armed:
            if armed.fault.kind is FaultKind.KV_REJECT:
                return self._use_up(armed)
        return False

    def count_tokens(self, count: int) -> None:
        """Count tokens that the engine generated."""
        for armed in self._armed:
            if armed.fault.kind in {FaultKind.DIE, FaultKind.HANG, FaultKind.CORE_HANG}:
                armed.tokens_left -= count

    def take_death(self) -> Fault | None:
        """The death that is due now; it is disarmed, so that it happens once."""
        for armed in self._armed:
            if armed.fault.kind is FaultKind.DIE and armed.tokens_left <= 0:
                self._armed.remove(armed)
                return armed.fault
        return None

    def for_request(self, prompt_text: str) -> RequestFaults:
        """The faults of this request; each fault that is limited to some requests counts it."""
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

"""From rows to the record that is printed. The statistics are figures.py's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .figures import Estimate, difference, ratio
from .loads import Row
from .plan import TTFT

OURS, AGAIN, DIRECT = "ours", "ours_again", "direct"

Cost = Callable[[Row], float]


def _per_request(row: Row) -> float:
    return row.cpu_us_per_request


def _per_chunk(row: Row) -> float:
    return row.cpu_us_per_chunk


COSTS: Mapping[str, tuple[str, Cost]] = {
    "cpu_per_request": ("request_1kb", _per_request),
    "cpu_per_request_32kb": ("request_32kb", _per_request),
    "cpu_per_request_400kb": ("request_400kb", _per_request),
    "cpu_per_chunk": ("chunk", _per_chunk),
    "cpu_per_chunk_in_step": ("chunk_in_step", _per_chunk),
}
"""Each ratio's name, the load it comes from, and what is read there."""
HEADLINES = ("added_ttft_ms", "added_ttft_ms_upper", "kb_per_stream", "max_chunks_per_s")


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured: rows in the order they were run, and by gateway what it carries."""

    rows: Sequence[Row]
    held_rates: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    memory_rows: Sequence[Row] = ()
    kib_per_stream: Mapping[str, float] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        """Every gateway that there is a figure of."""
        seen = [row.arm for row in (*self.rows, *self.memory_rows)]
        return [name for name in dict.fromkeys([*seen, *self.held_rates]) if name != DIRECT]

    def errors(self, arm: str) -> int:
        """Its failed requests, except where more was offered than it may bear."""
        return sum(row.errors for row in (*self.rows, *self.memory_rows) if row.arm == arm)


def summary(measured: Measured) -> dict[str, Any]:
    """Our own figures first, then ratios, then everybody's."""
    by_arm = {name: _figures_of(name, measured) for name in measured.arms}
    ours = by_arm.get(OURS, {})
    result: dict[str, Any] = {key: ours[key] for key in HEADLINES if key in ours}
    for name in by_arm:
        if name not in (OURS, AGAIN):
            result[f"vs_{name.replace('-', '_')}"] = ratios(measured.rows, OURS, name)
    return result | {"aa_control": ratios(measured.rows, AGAIN, OURS), "arms": by_arm}


def ratios(rows: Sequence[Row], a: str, b: str) -> dict[str, float | None]:
    """Arm a's processor time by arm b's, for every load that was run against both."""
    result: dict[str, float | None] = {}
    for name, (load, cost) in COSTS.items():
        ours, theirs = _costs(rows, a, load, cost), _costs(rows, b, load, cost)
        estimate = ratio(list(zip(ours, theirs, strict=True))) if ours and theirs else None
        if estimate is not None:
            result |= {
                name: rounded(estimate.upper),
                f"{name}_median": rounded(estimate.median),
                f"{name}_lower": rounded(estimate.lower),
            }
    return result


def rounded(value: float | None, digits: int = 3) -> float | None:
    """As many digits as the figure is good for."""
    return None if value is None else round(value, digits)


def _figures_of(name: str, measured: Measured) -> dict[str, Any]:
    found: dict[str, Any] = {"errors": measured.errors(name)}
    for key, (load, cost) in COSTS.items():
        if used := [value for value in _costs(measured.rows, name, load, cost) if value > 0]:
            found[key.replace("cpu_per", "cpu_us_per")] = rounded(median(used), 1)
    if added := _added_ttft(measured.rows, name):
        found |= {"added_ttft_ms": rounded(added.median), "added_ttft_ms_upper": rounded(added.upper)}
    if name in measured.kib_per_stream:
        found["kb_per_stream"] = rounded(measured.kib_per_stream[name], 1)
        # Whether the streams were as fast as they were meant to be.
        found["memory_chunks_per_s"] = next(
            row.chunks_per_s for row in measured.memory_rows if row.arm == name
        )
    if rates := measured.held_rates.get(name):
        # A repeat in which not even the lowest rate held counts as none at all.
        found["max_chunks_per_s"] = median(rate or 0 for rate in rates)
        found["max_chunks_per_s_repeats"] = list(rates)
    return found


def _costs(rows: Sequence[Row], arm: str, load: str, cost: Cost) -> list[float]:
    """A figure per round; 0 stands for a row that must not be used."""
    return [0.0 if row.errors else cost(row) for row in rows if (row.arm, row.load) == (arm, load)]


def _added_ttft(rows: Sequence[Row], name: str) -> Estimate | None:
    """By how many milliseconds a gateway's median TTFT is above that without one, round by round."""
    through, without = (
        [row.ttft_p50_us for row in rows if (row.arm, row.load) == (arm, TTFT)] for arm in (name, DIRECT)
    )
    if len(through) != len(without):
        return None
    pairs = [(a, b) for a, b in zip(through, without, strict=True) if a is not None and b is not None]
    return difference([(a - b) / 1000 for a, b in pairs]) if pairs else None

"""Many engines in a few lines: what they have in common, and the names of outliers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from phasewise.diagnosis.analysis.engine_load import EngineSurroundings

FAR = 3.0
"""An engine is an outlier if its distance from the median is this many times the median distance,"""
NAMED = 3
"""At most this many engines are named; the others are counted."""
FEWEST = 3
"""and if there are at least this many engines."""


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A reading that should be similar across engines. `least` is the smallest difference to report."""

    words: str
    read: Callable[[EngineSurroundings], float | None]
    least: float
    as_share: bool = False

    def say(self, value: float) -> str:
        return f"{value:.0%}" if self.as_share else f"{value:.0f}"

    def span(self, values: Sequence[float]) -> str:
        low, high = self.say(min(values)), self.say(max(values))
        return low if low == high else f"{low.rstrip('%')}-{high}"


GAUGES = (
    _Gauge("waiting", lambda it: it.engine_load.waiting_mean if it.engine_load else None, 2.0),
    _Gauge("running", lambda it: it.engine_load.running_mean if it.engine_load else None, 4.0),
    _Gauge(
        "of KV cache used",
        lambda it: it.engine_load.kv_usage_max if it.engine_load else None,
        0.3,
        as_share=True,
    ),
    _Gauge("preemptions", lambda it: it.preemptions, 3.0),
    _Gauge("of the time short of CPU", lambda it: it.cpu_wait_share, 0.1, as_share=True),
)


def engines_in_words(engines: Sequence[EngineSurroundings]) -> tuple[str, ...]:
    """A line on the engines, and one per outlier; nothing without readings."""
    known = {
        gauge.words: [(engine, value) for engine in engines if (value := gauge.read(engine)) is not None]
        for gauge in GAUGES
    }
    text = [
        f"{gauge.span([value for _, value in known[gauge.words]])} {gauge.words}"
        for gauge in GAUGES
        if any(value > 0 for _, value in known[gauge.words])
    ]
    if not text:
        return ()
    odd = [line for gauge in GAUGES for line in _outliers(gauge, known[gauge.words])]
    many = f"{len(engines)} engines" if len(engines) > 1 else engines[0].name
    more = (f"and {len(odd) - NAMED} more outliers",) if len(odd) > NAMED else ()
    return (f"{many}: {', '.join(text)}", *odd[:NAMED], *more)


def _outliers(gauge: _Gauge, known: Sequence[tuple[EngineSurroundings, float]]) -> list[str]:
    if len(known) < FEWEST:
        return []
    middle = median(value for _, value in known)
    usual = median(abs(value - middle) for _, value in known)
    far = max(FAR * usual, gauge.least)
    apart = sorted((item for item in known if abs(item[1] - middle) > far), key=lambda item: -item[1])
    others = [value for _, value in known if abs(value - middle) <= far]
    return [
        f"{engine.name}: {gauge.say(value)} {gauge.words}, the others {gauge.span(others)}"
        for engine, value in apart
    ]

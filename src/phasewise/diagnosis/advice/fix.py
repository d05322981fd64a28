"""A fix: what to change, the exact line, its price and its predicted effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from phasewise.core.statistics import Interval
from phasewise.engines.port import Ability

LeverValue = bool | int | str | dict[str, object] | None
"""A lever's value; None resets it to the engine's default."""


class Figure(StrEnum):
    """The figure that a fix aims at, named like the metrics of a comparison."""

    TTFT_P50 = "ttft_p50"
    TTFT_P90 = "ttft_p90"
    TPOT_P50 = "tpot_p50"
    ITL_P99 = "itl_p99"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class LeverChange:
    """One key of a pool in a fleet file and its new value: a lever, or `replicas`.

    `speculation` takes the number of draft tokens, or what a fleet file has there. If the current value
    is unknown, `times` is the factor to apply to it, and `value` is None.
    """

    name: str
    value: LeverValue
    times: float | None = None

    @property
    def fleet_value(self) -> object:
        """The value as a fleet file has it."""
        if self.name == "speculation" and isinstance(self.value, int):
            return {"method": "ngram", "tokens": self.value}
        return self.value


@dataclass(frozen=True, slots=True)
class PredictedChange:
    """A measured figure, and the factor by which it is expected to change.

    `before` is in seconds, or in tokens per second for throughput. `interval` contains the ratio that a
    measurement would find, with its confidence.
    """

    figure: Figure
    before: float
    ratio: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Effect:
    """What a fix alone would do to every figure; effects of two fixes are never multiplied.

    `replay_off_by` is the largest relative difference between the replay of the window and its measurement,
    over the figures: intervals are widened by it. `gain` is the share of the time lost beyond the objective
    that it takes away, below zero if it costs more.
    """

    changes: tuple[PredictedChange, ...]
    requests: int
    draws: int
    replay_off_by: float
    gain: float | None = None

    def of(self, figure: Figure) -> PredictedChange | None:
        return next((change for change in self.changes if change.figure is figure), None)


@dataclass(frozen=True, slots=True)
class Fix:
    """Something to do about a cause.

    `lever` is the change of a fleet file, `setting` that of an engine where a fleet file has no key for it;
    both are None for a fix outside the engine. `engine_flag` and `fleet_line` are the same change as text.
    `aims_at` is the figure that should improve. If there is no `effect`, `unpredictable` says why;
    `rough_gain` is then the share of the lost time that it takes away in one replay of the window, without an
    interval. It `needs` an engine that can do this. A `risky` fix can cost far more than it gains where the
    verdict is wrong: it stands last unless a replay shows that less time is lost.
    """

    what: str
    price: str
    aims_at: Figure
    lever: LeverChange | None = None
    setting: LeverChange | None = None
    engine_flag: str | None = None
    fleet_line: str | None = None
    verify: str = ""
    effect: Effect | None = None
    unpredictable: str = ""
    rough_gain: float | None = None
    risky: bool = False
    needs: Ability | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What helps against a cause, best first, and what does not, with the reason.

    Fixes that `do_not_pay` aim at the cause, but are predicted to make the figure worse on this traffic.
    """

    fixes: tuple[Fix, ...]
    would_not_help: tuple[str, ...] = ()
    do_not_pay: tuple[Fix, ...] = ()


LEAST_GAIN = 0.02
"""A fix that is predicted to take away less of the lost time does not pay."""
NO_CLEAR_GAIN = 0.05
"""One replay is not so exact that a smaller share of the lost time means anything: it neither ranks a fix
that cannot be predicted nor sets it apart."""


BESIDE_AN_ENGINE = 0.5
"""One more engine costs more than a setting: it goes first if it gains more than twice as much."""


def by_gain(advice: Advice) -> Advice:
    """The same fixes, the largest gain first, then what cannot be predicted.

    What is predicted to gain nothing is set apart, and what loses more in a replay. One more engine whose
    gain is not predicted does not pass a setting of which nobody knows what it gains: trying that is cheap.
    """
    gains = {index: _gain(fix) for index, fix in enumerate(advice.fixes)}
    pays = [index for index, fix in enumerate(advice.fixes) if _pays(fix, gains[index])]
    untried = any(gains[index] is None and advice.fixes[index].lever is not None for index in pays)

    def weight(index: int) -> float:
        fix = advice.fixes[index]
        share = _weight(fix, gains[index])
        if fix.lever is None or fix.lever.name != "replicas":
            return share
        return 0.0 if untried and fix.effect is None else share * BESIDE_AN_ENGINE

    return replace(
        advice,
        fixes=tuple(advice.fixes[index] for index in sorted(pays, key=weight, reverse=True)),
        do_not_pay=tuple(fix for index, fix in enumerate(advice.fixes) if index not in pays),
    )


def _weight(fix: Fix, gain: float | None) -> float:
    if fix.risky and (_share_of_lost_time(fix) or 0.0) < NO_CLEAR_GAIN:
        return -1.0
    if gain is None or (fix.effect is None and abs(gain) < NO_CLEAR_GAIN):
        return 0.0
    return gain


def _pays(fix: Fix, gain: float | None) -> bool:
    return gain is None or gain >= (-NO_CLEAR_GAIN if fix.effect is None else LEAST_GAIN)


def _gain(fix: Fix) -> float | None:
    """Its share of the lost time, or by how much the figure that it aims at improves; None if neither is
    known.
    """
    gain = _share_of_lost_time(fix)
    change = None if fix.effect is None else fix.effect.of(fix.aims_at)
    if gain is not None or change is None:
        return gain
    return change.ratio - 1.0 if change.figure is Figure.THROUGHPUT else 1.0 - change.ratio


def _share_of_lost_time(fix: Fix) -> float | None:
    return fix.rough_gain if fix.effect is None else fix.effect.gain

"""A fix: what to change, by which exact line, at what price, and what it would bring.

Which fix serves which cause is advice.py's to say; what it would bring is predicted elsewhere and filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.model.interval import Interval

LeverValue = bool | int | str | None
"""What a lever is set to; None takes it back to the engine's default."""


class Figure(StrEnum):
    """What a fix is judged by, under the names that a comparison gives its metrics."""

    TTFT_P50 = "ttft_p50"
    TTFT_P90 = "ttft_p90"
    TPOT_P50 = "tpot_p50"
    ITL_P99 = "itl_p99"
    THROUGHPUT = "throughput"


@dataclass(frozen=True, slots=True)
class LeverChange:
    """One key of a fleet file's pool and its new value: a lever, or `replicas`, which stands beside them.

    `speculation` takes the number of tokens that are guessed. Where the value that is set now is not known,
    `times` is what it is to be multiplied by, and `value` is None.
    """

    name: str
    value: LeverValue
    times: float | None = None

    @property
    def fleet_value(self) -> object:
        """The value as a fleet file has it."""
        if self.name == "speculation" and self.value is not None:
            return {"method": "ngram", "tokens": self.value}
        return self.value


@dataclass(frozen=True, slots=True)
class PredictedChange:
    """A figure as it was measured, and what it is expected to be multiplied by.

    `before` is in seconds, or in tokens per second for throughput. `interval` holds the ratio that a
    measurement would find, in its confidence of all cases.
    """

    figure: Figure
    before: float
    ratio: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Effect:
    """What a fix alone would do to every figure; effects of two fixes are never multiplied.

    `replay_off_by` is how far the replay of what was lies from what was measured, as a share, at worst over
    the figures: intervals are widened by it.
    """

    changes: tuple[PredictedChange, ...]
    requests: int
    draws: int
    replay_off_by: float

    def of(self, figure: Figure) -> PredictedChange | None:
        """What is predicted of one figure, if it is."""
        return next((change for change in self.changes if change.figure is figure), None)


@dataclass(frozen=True, slots=True)
class Fix:
    """Something to do about a cause.

    `lever` is what changes in a fleet file, None for what lies outside the engine; `engine_flag` and
    `fleet_line` are the same change as it is written. `aims_at` is the figure that should move. Where there
    is no `effect`, `unpredictable` says why.
    """

    what: str
    price: str
    aims_at: Figure
    lever: LeverChange | None = None
    engine_flag: str | None = None
    fleet_line: str | None = None
    verify: str = ""
    effect: Effect | None = None
    unpredictable: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What helps against a cause, best first, and what does not, with the reason."""

    fixes: tuple[Fix, ...]
    would_not_help: tuple[str, ...] = ()

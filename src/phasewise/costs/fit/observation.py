"""An observed duration with the work that was done in it: the input of a fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from phasewise.costs.fit.step import StepKind, StepWork


@dataclass(frozen=True, slots=True)
class Observation:
    """How long these steps took.

    A step record gives one step at a time. A client sees a prompt's steps only as a sum, including the
    time in the engine's front end: `through_front_end`. `at_s` is when they ended, on any clock.
    """

    works: tuple[StepWork, ...]
    seconds: float
    through_front_end: bool = False
    at_s: float = 0.0

    @property
    def kind(self) -> StepKind:
        """Which phases the steps served."""
        kinds = {work.kind for work in self.works}
        return kinds.pop() if len(kinds) == 1 else StepKind.MIXED

    @property
    def typical(self) -> StepWork:
        """The mean step."""
        count = len(self.works)
        return StepWork(
            prompt_tokens=sum(work.prompt_tokens for work in self.works) // count,
            decode_tokens=sum(work.decode_tokens for work in self.works) // count,
            requests=sum(work.requests for work in self.works) // count,
            attention_token_pairs=sum(work.attention_token_pairs for work in self.works) // count,
            kv_read_tokens=sum(work.kv_read_tokens for work in self.works) // count,
        )


# --- Keeps observations of every regime, so that steady traffic does not push out those of other times.
#
# A regime is a range of work, each twice as wide as the one before.

KEPT_PER_REGIME = 48

Regime = tuple[int, int, int]
"""Magnitudes: prompt tokens, decode tokens, and the mean token's context."""


def regime_of(work: StepWork) -> Regime:
    """The regime of a step, in powers of two."""
    looks_back = (work.attention_token_pairs + work.kv_read_tokens) // max(work.tokens, 1)
    return (work.prompt_tokens.bit_length(), work.decode_tokens.bit_length(), looks_back.bit_length())


class RegimeStore:
    """The latest observations of each regime. Bounded: there are some hundred regimes at most."""

    def __init__(self, observations: Iterable[Observation] = (), *, kept: int = KEPT_PER_REGIME) -> None:
        self._kept = kept
        self._regimes: dict[Regime, deque[Observation]] = {}
        for observation in observations:
            self.add(observation)

    def add(self, observation: Observation) -> None:
        """Keep an observation; it replaces the oldest of a full regime."""
        regime = regime_of(observation.typical)
        self._regimes.setdefault(regime, deque(maxlen=self._kept)).append(observation)

    def __len__(self) -> int:
        return sum(map(len, self._regimes.values()))

    def __iter__(self) -> Iterator[Observation]:
        for kept in self._regimes.values():
            yield from kept

    def check_invariants(self) -> None:
        """Every observation is in its own regime, and no regime holds more than its limit."""
        for regime, kept in self._regimes.items():
            if not 0 < len(kept) <= self._kept:
                raise AssertionError(f"{len(kept)} observations in regime {regime}")
            if any(regime_of(observation.typical) != regime for observation in kept):
                raise AssertionError(f"an observation of another regime in {regime}")


def is_near(regime: Regime, seen: frozenset[Regime]) -> bool:
    """Whether this regime, or one next to it, was observed.

    A regime next to it differs by at most one magnitude and serves the same phases: a step with both prompt
    and decode tokens is not similar to a step with only one of them.
    """
    return any(neighbour in seen for neighbour in _neighbours(regime))


def _neighbours(regime: Regime) -> Iterator[Regime]:
    prompts, decodes, reach = regime
    for by_prompt, by_decode, by_reach in product((0, -1, 1), repeat=3):
        near = (prompts + by_prompt, decodes + by_decode, reach + by_reach)
        if (near[0] > 0) == (prompts > 0) and (near[1] > 0) == (decodes > 0):
            yield near


# --- Groups readings by time: those of one visit share whatever slowed down the machine at that moment.

VISIT_S = 1.0
"""Readings with a longer pause between them are different visits."""


def visits_of(indices: Iterable[int], observations: Sequence[Observation]) -> list[list[int]]:
    """Indices of observations in order of time, one group per visit."""
    visits: list[list[int]] = []
    for index in sorted(indices, key=lambda each: observations[each].at_s):
        began_s = observations[index].at_s - observations[index].seconds
        if not visits or began_s - observations[visits[-1][-1]].at_s > VISIT_S:
            visits.append([])
        visits[-1].append(index)
    return visits

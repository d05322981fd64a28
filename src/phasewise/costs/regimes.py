"""Keeps what was seen of every regime: steady traffic must not push out what the engine did at other times.

A regime is a range of work, each twice as wide as the one before. What is kept is fitted by fit.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import product

from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepWork

KEPT_PER_REGIME = 48

Regime = tuple[int, int, int]
"""Magnitudes: prompt tokens, decode tokens, and how far back the mean token looks."""


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
        """Remember what was seen; the oldest of the same regime is forgotten."""
        regime = regime_of(observation.typical)
        self._regimes.setdefault(regime, deque(maxlen=self._kept)).append(observation)

    def __len__(self) -> int:
        return sum(map(len, self._regimes.values()))

    def __iter__(self) -> Iterator[Observation]:
        for kept in self._regimes.values():
            yield from kept

    def check_invariants(self) -> None:
        """Every observation lies in its own regime, and none holds more than it may."""
        for regime, kept in self._regimes.items():
            if not 0 < len(kept) <= self._kept:
                raise AssertionError(f"{len(kept)} observations in regime {regime}")
            if any(regime_of(observation.typical) != regime for observation in kept):
                raise AssertionError(f"a stranger in regime {regime}")


def is_near(regime: Regime, seen: frozenset[Regime]) -> bool:
    """Whether the engine has been in this regime or in one next to it.

    Next to it means one magnitude more or less, of a phase that was there: a step with prompts and streams
    is like no step that had only one of them.
    """
    return any(neighbour in seen for neighbour in _neighbours(regime))


def _neighbours(regime: Regime) -> Iterator[Regime]:
    prompts, decodes, reach = regime
    for by_prompt, by_decode, by_reach in product((0, -1, 1), repeat=3):
        near = (prompts + by_prompt, decodes + by_decode, reach + by_reach)
        if (near[0] > 0) == (prompts > 0) and (near[1] > 0) == (decodes > 0):
            yield near

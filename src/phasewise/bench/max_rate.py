"""The search for the largest rate at which a share of requests still meets the SLO.

The search only says which rate to try next: it yields trials and is sent what came of them, so that a test
drives it with a formula and the bench with an engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist

import numpy as np

from phasewise.bench.bootstrap import share_interval

LOOKS = 4
"""A rate is tried this often at most, each time with as many requests as all its trials before."""
FEWEST_REQUESTS = 100
FEWEST_BATCHES = 8
"""Fewer batches do not show whether misses come together."""
GROWTHS = 2
"""A queue seen to grow in so many trials of a rate grows; once may be a burst that the trial ended in."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Offer so many requests at this rate, and report."""

    rate_per_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Of `offered` requests `met` met the SLO; not settled means that the queue still grew.

    `clustering` says how many requests count as one, because misses come in bursts; `clustering_of` knows.
    """

    met: int
    offered: int
    settled: bool = True
    clustering: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.met <= self.offered or self.offered < 1:
            raise ValueError(f"{self.met} of {self.offered} requests cannot have met the SLO")


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of one rate after all its trials. Not certain: the share is too close to call."""

    rate_per_s: float
    met: int
    offered: int
    held: bool
    certain: bool
    settled: bool


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The largest rate that held, and the bracket around the true one.

    `low` held and `high` failed; None where no rate held, or none failed. `decided` says that both ends are
    known at the confidence and lie as close as was asked for.
    """

    low: float | None
    high: float | None
    decided: bool
    tried: tuple[Tried, ...]
    trials: int
    words: str

    @property
    def rate_per_s(self) -> float | None:
        """The rate to plan with: the largest that was seen to hold."""
        return self.low


def search_max_rate(
    start_per_s: float,
    attainment: float,
    *,
    confidence: float = 0.95,
    tolerance: float = 0.1,
    max_trials: int = 40,
) -> Generator[Trial, TrialOutcome, MaxRate]:
    """Double or halve until one rate holds and one fails, then halve the ratio between them to the tolerance.

    A rate that is too close to call is tried again with more requests, and counted by its share when it stays
    so. The confidence holds for a rate over all its looks, each of which spends an equal part of the error.
    Misses that come in bursts are allowed for as far as trials show them; a queue whose bursts outlast a
    trial, as one server's close to saturation do, still makes a decided bracket too sure of itself.
    """
    if start_per_s <= 0 or not 0 < attainment < 1 or tolerance <= 0 or max_trials < 1:
        raise ValueError("a search needs a rate, a tolerance and trials above 0 and an attainment below 1")
    search = _Search(attainment, confidence, tolerance, max_trials)
    while (rate := search.next_rate(start_per_s)) is not None:
        yield from search.try_rate(rate)
    return search.result()


@dataclass(slots=True)
class _Tally:
    """All trials of one rate."""

    met: int = 0
    offered: int = 0
    looks: int = 0
    growths: int = 0

    def add(self, outcome: TrialOutcome) -> None:
        self.met += outcome.met
        self.offered += outcome.offered
        self.looks += 1
        self.growths += not outcome.settled


class _Search:
    """What has been tried so far. Written by `try_rate` alone."""

    def __init__(self, attainment: float, confidence: float, tolerance: float, max_trials: int) -> None:
        self._attainment = attainment
        self._confidence = confidence
        self._per_look = 1 - (1 - confidence) / LOOKS
        self._tolerance = tolerance
        self._left = max_trials
        self._clustering = 1.0
        self._tallies: dict[float, _Tally] = {}

    def next_rate(self, start_per_s: float) -> float | None:
        """The rate to try next; None when the search is over.

        A calm trial shows no bursts, so its share may have seemed clear before a busier one showed them: an
        end of the bracket that is no longer clear is tried again before the search is over.
        """
        low, high = self._ends()
        if self._left == 0:
            return None
        if low is not None and high is not None:
            if not self._narrow(low, high):
                return sqrt(low.rate_per_s * high.rate_per_s)
            return next((end.rate_per_s for end in (low, high) if self._worth_a_look(end)), None)
        if low is not None:
            return low.rate_per_s * 2
        return high.rate_per_s / 2 if high is not None else start_per_s

    def try_rate(self, rate_per_s: float) -> Generator[Trial, TrialOutcome, None]:
        """Try one rate until it is clear or has been looked at often enough."""
        tally = self._tallies.setdefault(rate_per_s, _Tally())
        while self._left > 0 and self._worth_a_look(self._tried(rate_per_s)):
            requests = tally.offered or requests_needed(self._attainment, self._per_look)
            outcome = yield Trial(rate_per_s, requests)
            self._left -= 1
            self._clustering = max(self._clustering, outcome.clustering)
            tally.add(outcome)

    def result(self) -> MaxRate:
        """The bracket, and in words how far it can be believed."""
        low, high = self._ends()
        narrow = self._narrow(low, high)
        certain = all(end is None or end.certain for end in (low, high))
        return MaxRate(
            low=low.rate_per_s if low else None,
            high=high.rate_per_s if high else None,
            decided=narrow and certain,
            tried=tuple(self._tried(rate) for rate in self._tallies),
            trials=self._trials,
            words=self._words(low, high, narrow),
        )

    @property
    def _trials(self) -> int:
        return sum(tally.looks for tally in self._tallies.values())

    def _tried(self, rate_per_s: float) -> Tried:
        """What the trials of a rate say, with misses as clustered as they were anywhere in the search."""
        tally = self._tallies[rate_per_s]
        settled = tally.growths == 0 or (tally.growths < GROWTHS <= tally.looks)
        share = tally.met / tally.offered if tally.offered else 0.0
        alike = round(tally.offered / self._clustering)
        interval = share_interval(round(share * alike), alike, self._per_look)
        above = interval is not None and interval.low > self._attainment
        below = interval is not None and interval.high < self._attainment
        certain = below or tally.growths >= GROWTHS or (above and settled)
        return Tried(
            rate_per_s, tally.met, tally.offered, settled and share >= self._attainment, certain, settled
        )

    def _worth_a_look(self, tried: Tried) -> bool:
        return not tried.certain and self._tallies[tried.rate_per_s].looks < LOOKS

    def _ends(self) -> tuple[Tried | None, Tried | None]:
        """The largest rate that held and the smallest that failed.

        Every rate is tried between the two or beyond the only one there is, and only the two are tried again:
        whatever a trial turns, all that held stays below all that failed.
        """
        tried = [self._tried(rate) for rate in sorted(self._tallies)]
        held = [each for each in tried if each.held]
        failed = [each for each in tried if not each.held]
        return (held[-1] if held else None), (failed[0] if failed else None)

    def _narrow(self, low: Tried | None, high: Tried | None) -> bool:
        if low is None or high is None:
            return False
        return high.rate_per_s <= low.rate_per_s * (1 + self._tolerance)

    def _words(self, low: Tried | None, high: Tried | None, narrow: bool) -> str:
        if low is None or high is None:
            end, what = (low, "held") if low else (high, "failed")
            at = f" up to {low.rate_per_s:g}/s" if low else f" down to {end.rate_per_s:g}/s" if end else ""
            return f"every rate tried{at} {what}: {self._trials} trials found no limit"
        sentences = [f"held at {low.rate_per_s:.3g}/s, failed at {high.rate_per_s:.3g}/s"]
        sentences += [
            f"{end.rate_per_s:.3g}/s is too close to call at {self._confidence:.0%}: "
            f"{end.met} of {end.offered} met the SLO"
            for end in (low, high)
            if not end.certain
        ]
        if not high.settled:
            sentences.append(f"at {high.rate_per_s:.3g}/s the queue grew")
        if not narrow:
            sentences.append(f"{self._trials} trials were not enough to narrow it further")
        return "; ".join(sentences)


def requests_needed(attainment: float, confidence: float) -> int:
    """How many requests a first trial offers: twice what it takes until all hits are clearly above."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(FEWEST_REQUESTS, ceil(2 * z * z * attainment / (1 - attainment)))


def clustering_of(met: Sequence[bool]) -> float:
    """How many requests count as one, from who met the SLO in arrival order; 1 where misses are scattered.

    A queue makes requests miss together. The shares of batches then differ by more than as many independent
    requests would, and by how much more is how many requests are worth one.
    """
    batches = round(sqrt(len(met)))
    if batches < FEWEST_BATCHES:
        return 1.0
    shares = np.asarray([part.mean() for part in np.array_split(np.asarray(met, dtype=np.float64), batches)])
    share = float(shares.mean())
    if not 0 < share < 1:
        return 1.0
    return max(1.0, float(shares.var(ddof=1)) * len(met) / batches / (share * (1 - share)))

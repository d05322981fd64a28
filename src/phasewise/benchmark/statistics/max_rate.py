"""The search for the largest rate at which a share of requests still meets the SLO.

The search only chooses the next rate: it yields trials and is sent their outcomes, so that a test drives it
with a formula and the bench with an engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import NormalDist

import numpy as np

from phasewise.benchmark.statistics.bootstrap import share_interval
from phasewise.core.statistics import Interval
from phasewise.core.units import long_duration, significant

LOOKS = 4
"""A rate is tried this often at most, each time with as many requests as all its trials before."""
FEWEST_REQUESTS = 100
FEWEST_BATCHES = 8
"""Fewer batches do not show whether misses cluster."""
GROWTHS = 2
"""A queue that grows in this many trials of a rate grows; once may be a burst at the end of a trial."""
MOST_REQUESTS = 20_000
"""The most requests of one trial, which is what a plan may hold."""
MAX_SECONDS = 4 * 3600.0
"""The longest that all trials of a search may take, each from its first to its last arrival."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Offer so many requests at this rate, and report."""

    rate_per_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Of `offered` requests `met` met the SLO; not settled means that the queue still grew.

    `clustering` says how many requests count as one, because misses come in bursts (see `clustering_of`).
    `answered` requests got a whole reply, in time or not, and `mean_open` were open at once on average: they
    show whether a lower rate would help. None where they were not counted.
    """

    met: int
    offered: int
    settled: bool = True
    clustering: float = 1.0
    answered: int | None = None
    mean_open: float | None = None


@dataclass(frozen=True, slots=True)
class StopSearch:
    """Sent in place of an outcome: the search ends here, and its result begins with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of all trials of one rate. Not certain: the share is too close to call."""

    rate_per_s: float
    met: int
    offered: int
    held: bool
    certain: bool
    settled: bool


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The largest rate that held, and the bracket around the true one.

    `low` is the rate to plan with. It held and `high` failed; None where no rate held, or none failed.
    `decided` says that both ends are known at the confidence and within the tolerance; a search that ended
    early is undecided, and `words` begins with the reason.
    """

    low: float | None
    high: float | None
    decided: bool
    tried: tuple[Tried, ...]
    trials: int
    words: str


def search_max_rate(
    start_per_s: float,
    attainment: float,
    *,
    confidence: float = 0.95,
    tolerance: float = 0.1,
    max_trials: int = 40,
    most_requests: int = MOST_REQUESTS,
    max_seconds: float = MAX_SECONDS,
) -> Generator[Trial, TrialOutcome | StopSearch, MaxRate]:
    """Double or halve until one rate holds and one fails, then halve the ratio between them to the tolerance.

    A rate that is too close to call is tried again with more requests, and judged by its share if it stays
    so. The confidence holds for a rate over all its looks, each of which spends an equal part of the error.
    Bursts of misses are allowed for as far as trials show them; where bursts outlast a trial, as at one
    server close to saturation, a decided bracket is still too narrow.

    It ends early when it is sent a `StopSearch`, when no request is answered, when lone requests miss the
    SLO, too, and before a trial whose arrivals would take all trials beyond `max_seconds`. The time of a
    trial's last replies is not included.
    """
    search = _Search(_Terms(attainment, confidence, tolerance, most_requests, max_seconds), max_trials)
    while (rate := search.next_rate(start_per_s)) is not None:
        yield from search.try_rate(rate)
    return search.result()


@dataclass(frozen=True, slots=True)
class _Terms:
    attainment: float
    confidence: float
    tolerance: float
    most_requests: int
    max_seconds: float

    @property
    def per_look(self) -> float:
        """The confidence of one look at a rate."""
        return 1 - (1 - self.confidence) / LOOKS


@dataclass(slots=True)
class _RateTally:
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
    """All trials so far. Only `try_rate` writes to it."""

    def __init__(self, terms: _Terms, max_trials: int) -> None:
        self._terms = terms
        self._left = max_trials
        self._seconds = 0.0
        self._clustering = 1.0
        self._ended_because = ""
        self._tallies: dict[float, _RateTally] = {}

    def next_rate(self, start_per_s: float) -> float | None:
        """The rate to try next; None when the search is over.

        A calm trial shows no bursts, so its share may seem clear until a busier trial shows them. An end of
        the bracket that is no longer clear is tried again before the search is over.
        """
        low, high = self._ends()
        if self._left == 0 or self._ended_because:
            return None
        if low is not None and high is not None:
            if not self._narrow(low, high):
                return sqrt(low.rate_per_s * high.rate_per_s)
            return next((end.rate_per_s for end in (low, high) if self._worth_a_look(end)), None)
        if low is not None:
            return low.rate_per_s * 2
        return high.rate_per_s / 2 if high is not None else start_per_s

    def try_rate(self, rate_per_s: float) -> Generator[Trial, TrialOutcome | StopSearch, None]:
        """Try one rate until it is clear, was tried often enough, or the search has to end."""
        while not self._ended_because and self._left > 0 and self._worth_a_look(self._tried(rate_per_s)):
            trial = self._trial(rate_per_s)
            if too_long := self._too_long(trial):
                self._ended_because = too_long
                return
            outcome = yield trial
            if isinstance(outcome, StopSearch):
                self._ended_because = outcome.reason
            else:
                self._note(trial, outcome)

    def result(self) -> MaxRate:
        """The bracket, and in words how certain it is."""
        low, high = self._ends()
        certain = all(end is None or end.certain for end in (low, high))
        return MaxRate(
            low=low.rate_per_s if low else None,
            high=high.rate_per_s if high else None,
            decided=self._narrow(low, high) and certain and not self._ended_because,
            tried=tuple(self._tried(rate) for rate in self._tallies),
            trials=self._trials,
            words="; ".join(filter(None, [self._ended_because, *self._sentences(low, high)])),
        )

    @property
    def _trials(self) -> int:
        return sum(tally.looks for tally in self._tallies.values())

    def _trial(self, rate_per_s: float) -> Trial:
        before = self._tally(rate_per_s).offered
        wanted = before or requests_needed(self._terms.attainment, self._terms.per_look)
        return Trial(rate_per_s, min(wanted, self._terms.most_requests))

    def _tally(self, rate_per_s: float) -> _RateTally:
        return self._tallies.get(rate_per_s, _RateTally())

    def _note(self, trial: Trial, outcome: TrialOutcome) -> None:
        self._left -= 1
        self._seconds += trial.requests / trial.rate_per_s
        self._clustering = max(self._clustering, outcome.clustering)
        self._tallies.setdefault(trial.rate_per_s, _RateTally()).add(outcome)
        self._ended_because = self._hopeless(trial.rate_per_s, outcome)

    def _too_long(self, trial: Trial) -> str:
        seconds = trial.requests / trial.rate_per_s
        if self._seconds + seconds <= self._terms.max_seconds:
            return ""
        return (
            f"{trial.requests} requests at {significant(trial.rate_per_s)}/s take {long_duration(seconds)}, "
            f"and all trials may take {long_duration(self._terms.max_seconds)}"
        )

    def _hopeless(self, rate_per_s: float, outcome: TrialOutcome) -> str:
        """Why no lower rate would help, if so.

        Of requests that arrive at random with `mean_open` open on average, a share of exp(-2 * mean_open) is
        alone from start to end. If those met the SLO as often as required, at least their share of all
        requests would have met it.
        """
        if outcome.answered == 0:
            return f"no request was answered at {significant(rate_per_s)}/s"
        held = any(self._tried(rate).held for rate in self._tallies)
        if outcome.mean_open is None or outcome.mean_open >= 1 or held:
            return ""
        interval = self._interval(self._tally(rate_per_s))
        if interval is None or interval.high >= self._terms.attainment * exp(-2 * outcome.mean_open):
            return ""
        return "not even a lone request meets the SLO"

    def _interval(self, tally: _RateTally) -> Interval | None:
        """The interval of a rate's share, with the strongest clustering of misses in the whole search."""
        alike = round(tally.offered / self._clustering)
        share = tally.met / tally.offered if tally.offered else 0.0
        return share_interval(round(share * alike), alike, self._terms.per_look)

    def _tried(self, rate_per_s: float) -> Tried:
        tally = self._tally(rate_per_s)
        settled = tally.growths == 0 or (tally.growths < GROWTHS <= tally.looks)
        share = tally.met / tally.offered if tally.offered else 0.0
        interval = self._interval(tally)
        attainment = self._terms.attainment
        above = interval is not None and interval.low > attainment
        below = interval is not None and interval.high < attainment
        certain = below or tally.growths >= GROWTHS or (above and settled)
        return Tried(rate_per_s, tally.met, tally.offered, settled and share >= attainment, certain, settled)

    def _worth_a_look(self, tried: Tried) -> bool:
        return not tried.certain and self._tally(tried.rate_per_s).looks < LOOKS

    def _ends(self) -> tuple[Tried | None, Tried | None]:
        """The largest rate that held and the smallest that failed.

        Every rate is tried between the two or beyond the only one, and only these two are tried again: all
        that held stay below all that failed, whatever a trial changes.
        """
        tried = [self._tried(rate) for rate in sorted(self._tallies)]
        held = [each for each in tried if each.held]
        failed = [each for each in tried if not each.held]
        return (held[-1] if held else None), (failed[0] if failed else None)

    def _narrow(self, low: Tried | None, high: Tried | None) -> bool:
        if low is None or high is None:
            return False
        return high.rate_per_s <= low.rate_per_s * (1 + self._terms.tolerance)

    def _sentences(self, low: Tried | None, high: Tried | None) -> list[str]:
        sentences = [self._known(low, high)]
        sentences += [
            f"{significant(end.rate_per_s)}/s is too close to call at {self._terms.confidence:.0%}: "
            f"{end.met} of {end.offered} met the SLO"
            for end in (low, high)
            if end is not None and not end.certain
        ]
        if high is not None and not high.settled:
            sentences.append(f"at {significant(high.rate_per_s)}/s the queue grew")
        if not self._narrow(low, high) and not self._ended_because:
            what = "find a limit" if low is None or high is None else "narrow it further"
            sentences.append(f"{self._trials} trials were not enough to {what}")
        return sentences

    def _known(self, low: Tried | None, high: Tried | None) -> str:
        if low is not None and high is not None:
            return f"held at {significant(low.rate_per_s)}/s, failed at {significant(high.rate_per_s)}/s"
        if low is not None:
            return f"every rate tried up to {significant(low.rate_per_s)}/s held"
        if high is not None:
            return f"every rate tried down to {significant(high.rate_per_s)}/s failed"
        return "no rate was tried"


def requests_needed(attainment: float, confidence: float) -> int:
    """How many requests a first trial offers: twice what it takes to call a perfect share clearly above."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(FEWEST_REQUESTS, ceil(2 * z * z * attainment / (1 - attainment)))


def clustering_of(met: Sequence[bool]) -> float:
    """How many requests count as one, given which ones met the SLO in arrival order; 1 if scattered.

    A queue makes requests miss together. The shares of batches then differ more than with independent
    requests, and the ratio is how many requests count as one.
    """
    batches = round(sqrt(len(met)))
    if batches < FEWEST_BATCHES:
        return 1.0
    shares = np.asarray([part.mean() for part in np.array_split(np.asarray(met, dtype=np.float64), batches)])
    share = float(shares.mean())
    if not 0 < share < 1:
        return 1.0
    return max(1.0, float(shares.var(ddof=1)) * len(met) / batches / (share * (1 - share)))

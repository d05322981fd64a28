"""The search for the largest rate at which a share of requests still meets the SLO.

The search only says which rate to try next: it yields trials and is sent what came of them, so that a test
drives it with a formula and the bench with an engine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import ceil, exp, sqrt
from statistics import NormalDist

import numpy as np

from phasewise.bench.bootstrap import share_interval
from phasewise.model.interval import Interval

LOOKS = 4
"""A rate is tried this often at most, each time with as many requests as all its trials before."""
FEWEST_REQUESTS = 100
FEWEST_BATCHES = 8
"""Fewer batches do not show whether misses come together."""
GROWTHS = 2
"""A queue seen to grow in so many trials of a rate grows; once may be a burst that the trial ended in."""
MOST_REQUESTS = 20_000
"""One trial offers no more than this, which is what a plan may hold."""
MAX_SECONDS = 4 * 3600.0
"""The trials of a search take no longer than this, counted from the first to the last arrival of each."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Offer so many requests at this rate, and report."""

    rate_per_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Of `offered` requests `met` met the SLO; not settled means that the queue still grew.

    `clustering` says how many requests count as one, because misses come in bursts; `clustering_of` knows.
    `answered` requests got a whole reply, whether in time or not, and `mean_open` were open at once on
    average: from these a search sees that no lower rate would help. None where nobody counted.
    """

    met: int
    offered: int
    settled: bool = True
    clustering: float = 1.0
    answered: int | None = None
    mean_open: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.met <= self.offered or self.offered < 1:
            raise ValueError(f"{self.met} of {self.offered} requests cannot have met the SLO")
        if self.answered is not None and not self.met <= self.answered <= self.offered:
            raise ValueError(f"{self.answered} of {self.offered} requests cannot have been answered")


@dataclass(frozen=True, slots=True)
class StopSearch:
    """Sent in place of an outcome: the search ends here and says what it knows, the reason first."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a search is stopped for a reason")


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

    `low` is the rate to plan with. It held and `high` failed; None where no rate held, or none failed.
    `decided` says that both ends are known at the confidence and lie as close as was asked for; a search that
    ended early has decided nothing, and `words` begins with why it did.
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

    A rate that is too close to call is tried again with more requests, and counted by its share when it stays
    so. The confidence holds for a rate over all its looks, each of which spends an equal part of the error.
    Misses that come in bursts are allowed for as far as trials show them; a queue whose bursts outlast a
    trial, as one server's close to saturation do, still makes a decided bracket too sure of itself.

    It ends early when sent a `StopSearch`, when nothing is answered, when requests that were alone miss the
    SLO, too, and before a trial whose arrivals would take all trials beyond `max_seconds`. How long the last
    replies of a trial take is not foreseen.
    """
    if start_per_s <= 0 or not 0 < attainment < 1 or min(tolerance, max_trials, most_requests) <= 0:
        raise ValueError(
            "a search needs a rate, a tolerance, trials and requests above 0 and an attainment below 1"
        )
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

    def __init__(self, terms: _Terms, max_trials: int) -> None:
        self._terms = terms
        self._left = max_trials
        self._seconds = 0.0
        self._clustering = 1.0
        self._ended_because = ""
        self._tallies: dict[float, _Tally] = {}

    def next_rate(self, start_per_s: float) -> float | None:
        """The rate to try next; None when the search is over.

        A calm trial shows no bursts, so its share may have seemed clear before a busier one showed them: an
        end of the bracket that is no longer clear is tried again before the search is over.
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
        """Try one rate until it is clear, has been looked at often enough, or the search has to end."""
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
        """The bracket, and in words how far it can be believed."""
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

    def _tally(self, rate_per_s: float) -> _Tally:
        return self._tallies.get(rate_per_s, _Tally())

    def _note(self, trial: Trial, outcome: TrialOutcome) -> None:
        self._left -= 1
        self._seconds += trial.requests / trial.rate_per_s
        self._clustering = max(self._clustering, outcome.clustering)
        self._tallies.setdefault(trial.rate_per_s, _Tally()).add(outcome)
        self._ended_because = self._hopeless(trial.rate_per_s, outcome)

    def _too_long(self, trial: Trial) -> str:
        seconds = trial.requests / trial.rate_per_s
        if self._seconds + seconds <= self._terms.max_seconds:
            return ""
        return (
            f"{trial.requests} requests at {trial.rate_per_s:.3g}/s take {_hours(seconds)}, and all trials "
            f"may take {_hours(self._terms.max_seconds)}"
        )

    def _hopeless(self, rate_per_s: float, outcome: TrialOutcome) -> str:
        """Why no lower rate would help, if so.

        Of requests that come at random with `mean_open` open on average, a share of exp(-2 * mean_open) has
        none beside it from its start to its end. Did those meet the SLO as often as asked for, then at least
        their part of all requests would have met it.
        """
        if outcome.answered == 0:
            return f"no request was answered at {rate_per_s:.3g}/s"
        held = any(self._tried(rate).held for rate in self._tallies)
        if outcome.mean_open is None or outcome.mean_open >= 1 or held:
            return ""
        most = self._most_met(self._tally(rate_per_s))
        if most >= self._terms.attainment * exp(-2 * outcome.mean_open):
            return ""
        return "not even a lone request meets it"

    def _most_met(self, tally: _Tally) -> float:
        interval = self._interval(tally)
        return 1.0 if interval is None else interval.high

    def _interval(self, tally: _Tally) -> Interval | None:
        """Where the share of a rate lies, with misses as clustered as they were anywhere in the search."""
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
        return high.rate_per_s <= low.rate_per_s * (1 + self._terms.tolerance)

    def _sentences(self, low: Tried | None, high: Tried | None) -> list[str]:
        sentences = [self._known(low, high)]
        sentences += [
            f"{end.rate_per_s:.3g}/s is too close to call at {self._terms.confidence:.0%}: "
            f"{end.met} of {end.offered} met the SLO"
            for end in (low, high)
            if end is not None and not end.certain
        ]
        if high is not None and not high.settled:
            sentences.append(f"at {high.rate_per_s:.3g}/s the queue grew")
        if not self._narrow(low, high) and not self._ended_because:
            what = "find a limit" if low is None or high is None else "narrow it further"
            sentences.append(f"{self._trials} trials were not enough to {what}")
        return sentences

    def _known(self, low: Tried | None, high: Tried | None) -> str:
        if low is not None and high is not None:
            return f"held at {low.rate_per_s:.3g}/s, failed at {high.rate_per_s:.3g}/s"
        if low is not None:
            return f"every rate tried up to {low.rate_per_s:.3g}/s held"
        if high is not None:
            return f"every rate tried down to {high.rate_per_s:.3g}/s failed"
        return "no rate was tried"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


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

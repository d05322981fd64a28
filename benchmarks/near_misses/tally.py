"""What a stream's outcomes come to: shares, by thousands of requests and by kind, with what chance leaves
open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import Any

from .play import Given, Outcome

INTERVAL_CONFIDENCE = 0.95
THOUSAND = 1_000


@dataclass(frozen=True)
class KindShare:
    """How many of a kind's requests got a wrong answer that was made for another question."""

    kind: str
    requests: int
    wrong: int

    def facts(self) -> dict[str, Any]:
        """For the record, with the interval that holds the true share with 95% confidence."""
        return {
            "kind": self.kind,
            "requests": self.requests,
            "wrong": self.wrong,
            "interval": [round(bound, 5) for bound in exact_interval(self.wrong, self.requests)],
        }


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of one run; those by thousands are of each thousand requests in turn."""
    served = sum(outcome.is_served for outcome in outcomes)
    wrong = sum(outcome.is_wrong for outcome in outcomes)
    parts = [outcomes[start : start + THOUSAND] for start in range(0, len(outcomes), THOUSAND)]
    return {
        "requests": len(outcomes),
        "exact_hits": _count(outcomes, Given.EXACT),
        "alias_hits": _count(outcomes, Given.ALIAS),
        "semantic_hits": _count(outcomes, Given.STORED),
        "wrong": wrong,
        "wrong_share": round(wrong / served, 5) if served else 0.0,
        "wrong_interval": [round(bound, 5) for bound in exact_interval(wrong, served)] if served else None,
        "hits_by_thousand": [hits(part) for part in parts],
        "chances_by_thousand": [sum(outcome.could_hit for outcome in part) for part in parts],
        "judged_by_thousand": [_count(part, Given.JUDGED) for part in parts],
        "wrong_by_thousand": [sum(outcome.is_wrong for outcome in part) for part in parts],
    }


def hits(outcomes: Iterable[Outcome]) -> int:
    """How many were served rightly of those requests whose answer was asked for before, in other words."""
    return sum(outcome.could_hit and outcome.is_served and outcome.right is True for outcome in outcomes)


def kind_shares(outcomes: Iterable[Outcome]) -> list[KindShare]:
    """All kinds, the one with the largest share of wrong answers first; exact hits do not count."""
    requests: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.given is not Given.EXACT:
            requests[outcome.kind] += 1
            wrong[outcome.kind] += outcome.is_wrong
    shares = [KindShare(kind, count, wrong[kind]) for kind, count in requests.items()]
    return sorted(shares, key=lambda each: (-each.wrong / each.requests, each.kind))


def exact_interval(hits: int, trials: int, confidence: float = INTERVAL_CONFIDENCE) -> tuple[float, float]:
    """The range of a share by Clopper and Pearson: at least as sure as it says, however few were seen."""
    tail = (1 - confidence) / 2
    low = _bisect(lambda share: 1 - _at_most(hits - 1, trials, share) > tail) if hits else 0.0
    high = _bisect(lambda share: _at_most(hits, trials, share) < tail) if hits < trials else 1.0
    return low, high


def _count(outcomes: Iterable[Outcome], given: Given) -> int:
    return sum(outcome.given is given for outcome in outcomes)


def _at_most(hits: int, trials: int, share: float) -> float:
    """The chance of no more hits than these, if each trial hits with this chance."""
    if share in (0.0, 1.0):
        return 1.0 - share
    logs = (
        lgamma(trials + 1)
        - lgamma(k + 1)
        - lgamma(trials - k + 1)
        + k * log(share)
        + (trials - k) * log1p(-share)
        for k in range(hits + 1)
    )
    return sum(map(exp, logs))


def _bisect(is_above: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2

"""What a stream's outcomes come to: shares, by kind and by third, with what chance leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p
from typing import Any

from .play import Given, Outcome

INTERVAL_CONFIDENCE = 0.95


@dataclass(frozen=True)
class KindShare:
    """How many of a kind's requests got a wrong answer semantically."""

    kind: str
    requests: int
    wrong: int

    @property
    def share(self) -> float:
        """Of all of the kind's requests that came to the semantic tier."""
        return self.wrong / self.requests

    def facts(self) -> dict[str, Any]:
        """For the record, with the interval that holds the true share with 95% confidence."""
        low, high = exact_interval(self.wrong, self.requests)
        return {
            "kind": self.kind,
            "requests": self.requests,
            "wrong": self.wrong,
            "share": round(self.share, 5),
            "interval": [round(low, 5), round(high, 5)],
        }


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The figures of one run."""
    half = len(outcomes) // 2
    served = sum(outcome.given is Given.STORED for outcome in outcomes)
    wrong = sum(map(_is_wrong, outcomes))
    return {
        "requests": len(outcomes),
        "exact_hits": sum(outcome.given is Given.EXACT for outcome in outcomes),
        "served_by_meaning": served,
        "wrong": wrong,
        "wrong_share": _share(wrong, served),
        "wrong_share_of_requests": _share(wrong, len(outcomes)),
        "hit_rate": hit_rate(outcomes),
        "hit_rate_second_half": hit_rate(outcomes[half:]),
        "explored_share": _share(sum(outcome.given is Given.EXPLORED for outcome in outcomes), len(outcomes)),
        "thirds": [_third(outcomes, third) for third in range(3)],
    }


def hit_rate(outcomes: Iterable[Outcome]) -> float | None:
    """The share served rightly of those requests whose answer was asked for before, in other words."""
    could = [outcome for outcome in outcomes if outcome.could_hit]
    return _share(
        sum(outcome.given is Given.STORED and outcome.right is True for outcome in could), len(could)
    )


def kind_shares(outcomes: Iterable[Outcome]) -> list[KindShare]:
    """All kinds, the one with the largest share of wrong answers first; exact hits do not count."""
    requests: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.given is not Given.EXACT:
            requests[outcome.kind] += 1
            wrong[outcome.kind] += _is_wrong(outcome)
    shares = [KindShare(kind, count, wrong[kind]) for kind, count in requests.items()]
    return sorted(shares, key=lambda each: (-each.share, each.kind))


def worst_kind(shares: Sequence[KindShare]) -> KindShare | None:
    """The one of which the largest share was answered wrongly, however few they were."""
    return shares[0] if shares else None


def exact_interval(hits: int, trials: int, confidence: float = INTERVAL_CONFIDENCE) -> tuple[float, float]:
    """The range of a share by Clopper and Pearson: at least as sure as it says, however few were seen."""
    tail = (1 - confidence) / 2
    low = _bisect(lambda share: 1 - _at_most(hits - 1, trials, share) > tail) if hits else 0.0
    high = _bisect(lambda share: _at_most(hits, trials, share) < tail) if hits < trials else 1.0
    return low, high


def _third(outcomes: Sequence[Outcome], third: int) -> dict[str, Any]:
    part = [outcome for outcome in outcomes if outcome.third == third]
    served = sum(outcome.given is Given.STORED for outcome in part)
    return {
        "wrong": sum(map(_is_wrong, part)),
        "wrong_share": _share(sum(map(_is_wrong, part)), served),
        "hit_rate": hit_rate(part),
        "explored_share": _share(sum(outcome.given is Given.EXPLORED for outcome in part), len(part)),
    }


def _is_wrong(outcome: Outcome) -> bool:
    return outcome.given is Given.STORED and not outcome.right


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


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

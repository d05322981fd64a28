"""How large a share can be, given outcomes that may be looked at after each of them.

A fixed-sample interval holds for one look. These hold for every look at once, because they are bets against
the contrary: wealth that is not expected to grow if the contrary is true ever reaches 1 / (1 - confidence)
with a chance of at most 1 - confidence (Ville's inequality).
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p

from phasewise.core.value import value

_PRIOR_RIGHT = 200.0
"""The prior of a share of errors is Beta(1, this), which favours small shares. Any choice is valid."""
_BETS = (0.25, 0.6)
"""A bet is that errors are this part of what is tolerated; wealth is split between the bets."""
_LOOK_EVERY = 8
"""After how many outcomes without an error the bounds are computed again."""
_CAP = log(6.0)
"""How far wealth may grow above what proves. Giving up wealth is allowed; three errors soon end a proof."""


@value
class Share:
    """Outcomes of which some are errors."""

    right: int = 0
    wrong: int = 0

    def interval(self, confidence: float) -> tuple[float, float]:
        """The smallest and largest share of errors that the outcomes leave open."""
        seen = self.right + self.wrong
        if not seen:
            return 0.0, 1.0
        most = -log1p(-confidence)
        best = self.wrong / seen
        low = _bisect(self, most, 0.0, best, rising=False) if self.wrong else 0.0
        high = _bisect(self, most, best, 1.0, rising=True) if self.right else 1.0
        return low, high

    def after(self, right: bool) -> Share:
        """With one outcome more."""
        return Share(self.right + right, self.wrong + (not right))


def _bisect(share: Share, most: float, low: float, high: float, *, rising: bool) -> float:
    for _ in range(30):
        middle = (low + high) / 2
        if (_evidence_against(share, middle) < most) is rising:
            low = middle
        else:
            high = middle
    return high if rising else low


def _evidence_against(share: Share, error: float) -> float:
    """The log of the outcomes' likelihood, averaged over the prior, relative to that at this share."""
    if not 0.0 < error < 1.0:
        return float("inf")
    averaged = _log_beta(1.0 + share.wrong, _PRIOR_RIGHT + share.right) - _log_beta(1.0, _PRIOR_RIGHT)
    return averaged - share.wrong * log(error) - share.right * log1p(-error)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


class Tracked:
    """A share with the bounds of all its intervals at once: what one of them excluded stays excluded."""

    def __init__(self, confidence: float) -> None:
        self._confidence = confidence
        self.share = Share()
        self.least, self.most = 0.0, 1.0

    def learn(self, right: bool) -> bool:
        """Count an outcome. False if it contradicts what was excluded: the share is not what it was."""
        self.share = self.share.after(right)
        if right and (self.share.right + self.share.wrong) % _LOOK_EVERY:
            return True  # to look less often is allowed, and reading a long log takes less time
        least, most = self.share.interval(self._confidence)
        self.least, self.most = max(least, self.least), min(most, self.most)
        return self.least <= self.most


@value
class Proof:
    """A bet that errors are fewer than is tolerated: its outcomes, and the log of each bet's wealth."""

    outcomes: Share = Share()
    wealth: tuple[float, ...] = (0.0,) * len(_BETS)

    def after(self, right: bool, tolerated: float, confidence: float) -> Proof:
        """With one outcome more. `tolerated` may differ each time, if it is known before the outcome."""
        most = -log1p(-confidence) + _CAP
        wealth = tuple(
            min(have + (log1p(-part * tolerated) - log1p(-tolerated) if right else log(part)), most)
            for have, part in zip(self.wealth, _BETS, strict=True)
        )
        return Proof(self.outcomes.after(right), wealth)

    def holds(self, confidence: float) -> bool:
        """Whether errors are proven to be fewer than was tolerated."""
        return sum(map(exp, self.wealth)) / len(self.wealth) >= 1 / (1 - confidence)

    def missing(self, tolerated: float, confidence: float) -> int | None:
        """About how many more right outcomes in a row would complete the proof; None if none ever would."""
        if self.holds(confidence):
            return 0
        if tolerated <= 0.0:
            return None
        gains = (log1p(-part * tolerated) - log1p(-tolerated) for part in _BETS)
        needed = -log1p(-confidence) + log(len(_BETS))
        steps = ((needed - have) / gain for have, gain in zip(self.wealth, gains, strict=True))
        return max(1, int(min(steps)) + 1)

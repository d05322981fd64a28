"""When verified outcomes prove that too few matches are wrong to matter: a bet against the contrary.

Which outcomes belong together is evidence_book.py's; how they were verified is left to a judge.

The claim "at least `budget` of such matches are wrong" is bet against with one unit of wealth. After each
verified match the wealth is multiplied by (1 - q) / (1 - budget) if the match was right and by q / budget if
it was wrong, with q < budget: if the claim is true, no step is expected to gain. Wealth of that sort (a test
supermartingale) reaches 1 / (1 - confidence) at any time at all with a chance of at most 1 - confidence
(Ville's inequality), so it may be looked at after every outcome, without a plan for how many there will be.

Promised: of matches whose true share of wrong ones stays at or above the budget, the chance that any is ever
served is at most 1 - confidence. Not promised: that a share which rises after the proof is noticed at once
(audits lower the wealth then, and its cap lets a few wrong ones end the serving), nor anything about a judge
who errs. Outcomes must be a fair sample of the matches: all of them before the proof, audits drawn by lot
afterwards, and nothing chosen by how it will turn out.
"""

from __future__ import annotations

from math import ceil, lgamma, log, log1p

from phasewise.model.noun import noun

START = 0.0
"""The log of the wealth before anything was verified."""
BET_DIVISOR = 4
"""The bet q is the budget divided by this: a wrong match divides the wealth by it."""
_ROUNDING = 1e-9
_PRIOR_RIGHT = 200.0
"""Weighs shares of wrong matches beforehand, small ones more: Beta(1, this). Any choice is valid."""


@noun
class Bound:
    """How many wrong answers are borne, and how sure one must be that there are no more."""

    budget: float
    confidence: float

    @property
    def threshold(self) -> float:
        """The log of the wealth at which matches are proven good enough."""
        return -log1p(-self.confidence)

    @property
    def cap(self) -> float:
        """The most wealth is counted up to: the first wrong match warns, the second soon after ends serving.

        Wealth that is given away keeps no supermartingale from being one.
        """
        return self.threshold + log(BET_DIVISOR)

    def after(self, log_wealth: float, right: bool) -> float:
        """The log of the wealth once one more outcome is known."""
        return min(log_wealth + (self._gain if right else -log(BET_DIVISOR)), self.cap)

    def proven(self, log_wealth: float) -> bool:
        """Whether such matches may be served."""
        return log_wealth >= self.threshold - _ROUNDING

    def missing(self, log_wealth: float) -> int:
        """How many more right outcomes in a row would be the proof."""
        return max(0, ceil((self.threshold - log_wealth - _ROUNDING) / self._gain))

    def most_wrong_share(self, right: int, wrong: int) -> float:
        """The share of wrong matches that is not exceeded, with this confidence, however often it is asked.

        For people to read: it holds where the share does not change. What is served is decided by wealth.
        """
        if not right:
            return 1.0
        low, high = wrong / (right + wrong), 1.0
        for _ in range(30):
            middle = (low + high) / 2
            if _log_evidence_against(middle, right, wrong) < self.threshold:
                low = middle
            else:
                high = middle
        return high

    @property
    def _gain(self) -> float:
        return log1p(-self.budget / BET_DIVISOR) - log1p(-self.budget)


def _log_evidence_against(share: float, right: int, wrong: int) -> float:
    """The log of the likelihood of these outcomes, averaged over the prior, to that at this share."""
    averaged = _log_beta(1.0 + wrong, _PRIOR_RIGHT + right) - _log_beta(1.0, _PRIOR_RIGHT)
    return averaged - (wrong * log(share) if wrong else 0.0) - right * log1p(-share)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)

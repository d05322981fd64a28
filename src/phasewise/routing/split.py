"""Whether a request's prompt is computed on another worker than its answer, and on which two.

Pure. What engines take is costs/pace_book.py's to know, what they hold in cache state/prefix_index.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phasewise.costs.pace_book import PaceBook
from phasewise.model.decision import Candidate, Decision
from phasewise.model.hand_over import SplitRule
from phasewise.model.request import GenerationRequest
from phasewise.model.worker import Role
from phasewise.routing.policies import HandsOver, WholePolicy
from phasewise.state.prefix_index import PrefixIndex


@dataclass(frozen=True, slots=True)
class SplitPolicy:
    """Places requests of a fleet that has prefill workers; `whole` places those that stay in one piece."""

    rule: SplitRule
    threshold_tokens: int
    whole: WholePolicy
    paces: PaceBook
    prefixes: PrefixIndex

    def __call__(
        self, request: GenerationRequest, candidates: Sequence[Candidate], hands_over: HandsOver
    ) -> Decision:
        """Part the phases where the rule says so and a pair can hand over; else place the whole."""
        decoders = [it for it in candidates if it.worker.role is not Role.PREFILL]
        decision = self.whole(request, decoders or candidates)
        if not self._wants_split(request) or decision.chosen.role is not Role.DECODE:
            return decision
        readers = [
            it
            for it in candidates
            if it.worker.role is Role.PREFILL and hands_over(it.worker, decision.chosen)
        ]
        if not readers:
            return decision
        prefill = min(readers, key=lambda it: it.unread_tokens).worker
        return replace(decision, policy=self.rule, prefill=prefill)

    def _wants_split(self, request: GenerationRequest) -> bool:
        if not request.splittable or self.rule in (SplitRule.NEVER, SplitRule.AUTO):
            return False
        return self.rule is SplitRule.ALWAYS or request.estimated_prompt_tokens >= self.threshold_tokens

"""A duration that was seen, with the work that was done in it: what a fit is made from."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.costs.step_work import StepKind, StepWork


@dataclass(frozen=True, slots=True)
class Observation:
    """So many seconds went by while these steps ran.

    A step record gives one step at a time. A client sees a prompt's steps only together, and with them the
    way through the engine's front end: `through_front_end`. `at_s` is when they ended, on any clock.
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

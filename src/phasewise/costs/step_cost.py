"""How long a step takes, as a sum of parts that can be told apart by observing steps.

Weights and overhead are one part, the floor: on one machine nothing separates them. Fitting is fit.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.costs.step_work import StepWork


class CostPart(StrEnum):
    """What a step's time is spent on."""

    FLOOR = "floor"
    TOKENS = "tokens"
    BEYOND_KNEE = "beyond_knee"
    ATTENTION = "attention"
    KV_READ = "kv_read"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class StepCost:
    """Nearly flat up to the knee, where weights and overhead are paid for; then linear; then attention shows.

    `per_token_s` is paid for every token, `beyond_knee_s_per_token` on top by those beyond the knee.
    """

    floor_s: float
    knee_tokens: int
    beyond_knee_s_per_token: float
    attention_s_per_token_pair: float
    kv_read_s_per_token: float
    per_request_s: float
    per_token_s: float = 0.0

    def __call__(self, work: StepWork) -> float:
        """Seconds of a step."""
        beyond_knee = max(0, work.prompt_tokens + work.decode_tokens - self.knee_tokens)
        return (
            self.floor_s
            + self.per_token_s * (work.prompt_tokens + work.decode_tokens)
            + self.beyond_knee_s_per_token * beyond_knee
            + self.attention_s_per_token_pair * work.attention_token_pairs
            + self.kv_read_s_per_token * work.kv_read_tokens
            + self.per_request_s * work.requests
        )

    @property
    def coefficients(self) -> dict[CostPart, float]:
        """Seconds per unit of each part."""
        return {
            CostPart.FLOOR: self.floor_s,
            CostPart.TOKENS: self.per_token_s,
            CostPart.BEYOND_KNEE: self.beyond_knee_s_per_token,
            CostPart.ATTENTION: self.attention_s_per_token_pair,
            CostPart.KV_READ: self.kv_read_s_per_token,
            CostPart.REQUESTS: self.per_request_s,
        }

    def parts_s(self, work: StepWork) -> dict[CostPart, float]:
        """The same seconds, by what they are spent on."""
        units = {
            CostPart.FLOOR: 1,
            CostPart.TOKENS: work.tokens,
            CostPart.BEYOND_KNEE: max(0, work.tokens - self.knee_tokens),
            CostPart.ATTENTION: work.attention_token_pairs,
            CostPart.KV_READ: work.kv_read_tokens,
            CostPart.REQUESTS: work.requests,
        }
        return {part: seconds * units[part] for part, seconds in self.coefficients.items()}

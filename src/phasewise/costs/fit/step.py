"""How long a step takes, as a sum of parts that observed steps can distinguish.

Weights and overhead are one part, the floor: observations on one machine cannot separate them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

# --- What one engine step carries, in counts that can be observed from outside.


class StepKind(StrEnum):
    """Which phases a step serves."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step carries.

    `attention_token_pairs` counts, over the prompt tokens of the step, the tokens each one attends to;
    `kv_read_tokens` adds up the context lengths of the decoding sequences.
    """

    prompt_tokens: int = 0
    decode_tokens: int = 0
    requests: int = 0
    attention_token_pairs: int = 0
    kv_read_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.decode_tokens

    @property
    def kind(self) -> StepKind:
        if not self.prompt_tokens:
            return StepKind.DECODE
        return StepKind.MIXED if self.decode_tokens else StepKind.PREFILL

    def without_prompts(self) -> StepWork:
        """The same step without prefill: the decoding sequences, with one token each."""
        return StepWork(
            decode_tokens=self.decode_tokens, requests=self.decode_tokens, kv_read_tokens=self.kv_read_tokens
        )


StepSeconds = Callable[[StepWork], float]
"""How long a step takes. `StepCost` implements this, and so does any function of the work."""


def chunk_pairs(tokens: int, context_tokens: int) -> int:
    """The pairs of a prompt's chunk: each token attends to all before it and to itself."""
    return tokens * context_tokens + tokens * (tokens + 1) // 2


def decoding(contexts_tokens: list[int]) -> StepWork:
    """A step in which sequences of these lengths get one token each."""
    streams = len(contexts_tokens)
    return StepWork(decode_tokens=streams, requests=streams, kv_read_tokens=sum(contexts_tokens))


def prefilling(tokens: int, context_tokens: int = 0) -> StepWork:
    """A step that computes one chunk of a prompt after `context_tokens` that are computed already."""
    return StepWork(
        prompt_tokens=tokens, requests=1, attention_token_pairs=chunk_pairs(tokens, context_tokens)
    )


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
    """Nearly flat up to the knee, where weights and overhead dominate; then linear; then attention shows.

    Every token costs `per_token_s`; tokens beyond the knee cost `beyond_knee_s_per_token` on top.
    """

    floor_s: float
    knee_tokens: int
    beyond_knee_s_per_token: float
    attention_s_per_token_pair: float
    kv_read_s_per_token: float
    per_request_s: float
    per_token_s: float = 0.0

    def __call__(self, work: StepWork) -> float:
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
        """The seconds of a step by part, which add up to the whole."""
        units = {
            CostPart.FLOOR: 1,
            CostPart.TOKENS: work.tokens,
            CostPart.BEYOND_KNEE: max(0, work.tokens - self.knee_tokens),
            CostPart.ATTENTION: work.attention_token_pairs,
            CostPart.KV_READ: work.kv_read_tokens,
            CostPart.REQUESTS: work.requests,
        }
        return {part: seconds * units[part] for part, seconds in self.coefficients.items()}


# --- What bounds a step, read from the parts of its fitted cost.
#
# Decode is bandwidth-bound for most models on most accelerators, but that has to show here: the floor is
# weights and overhead together, and only the machine's read bandwidth distinguishes them.


class StepBound(StrEnum):
    """What takes most of a step's time."""

    WEIGHTS = "reading the weights"
    OVERHEAD = "overhead"
    WEIGHTS_OR_OVERHEAD = "weights or overhead"
    COMPUTE = "compute"
    ATTENTION = "attention"
    KV_READS = "reading the KV cache"
    REQUESTS = "work per request"
    NETWORK = "network"


_BOUND_OF = {
    CostPart.ATTENTION: StepBound.ATTENTION,
    CostPart.KV_READ: StepBound.KV_READS,
    CostPart.REQUESTS: StepBound.REQUESTS,
    CostPart.TOKENS: StepBound.COMPUTE,
    CostPart.BEYOND_KNEE: StepBound.COMPUTE,
}


@dataclass(frozen=True, slots=True)
class Binding:
    """What bounds a step: its largest part, and that part's share."""

    work: StepWork
    seconds: float
    bound: StepBound
    share: float


def binding(cost: StepCost, work: StepWork, weights_read_s: float | None = None) -> Binding:
    """What bounds a step; `weights_read_s` is how long this machine needs to read all weights, if known."""
    by_bound: dict[StepBound, float] = {}
    for part, part_s in cost.parts_s(work).items():
        shares = {_BOUND_OF[part]: part_s} if part in _BOUND_OF else _floor(part_s, weights_read_s)
        for bound, bound_s in shares.items():
            by_bound[bound] = by_bound.get(bound, 0.0) + bound_s
    seconds = sum(by_bound.values())
    largest = max(by_bound, key=lambda bound: by_bound[bound])
    share = by_bound[largest] / seconds if seconds > 0 else 0.0
    return Binding(work, seconds, largest, share)


def _floor(floor_s: float, weights_read_s: float | None) -> dict[StepBound, float]:
    """The floor's two parts; one where they cannot be separated, or the weights alone would take longer."""
    if weights_read_s is None or weights_read_s > floor_s:
        return {StepBound.WEIGHTS_OR_OVERHEAD: floor_s}
    return {StepBound.WEIGHTS: weights_read_s, StepBound.OVERHEAD: floor_s - weights_read_s}

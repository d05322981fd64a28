"""Step costs for fake engines: presets by name, and costs with one phase slower by a known factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from phasewise.core.errors import UsageError
from phasewise.costs.fit.step import StepCost, StepSeconds, StepWork


@dataclass(frozen=True, slots=True)
class PhaseScaled:
    """A cost with one phase slower by a factor, for tests with a known effect.

    Prefill is the time that a step's prompt tokens add, decode the rest. A step without decode tokens would
    not run without its prompts: it counts as prefill, with all its overhead.
    """

    cost: StepSeconds
    prefill: float = 1.0
    decode: float = 1.0

    def __post_init__(self) -> None:
        if not (self.prefill > 0 and self.decode > 0):
            raise UsageError(
                f"phases cannot take {self.prefill:g} and {self.decode:g} times as long",
                hint="use factors above 0; 1.1 is 10% slower",
            )

    def __call__(self, work: StepWork) -> float:
        """Seconds of a step."""
        whole_s = self.cost(work)
        if not work.prompt_tokens:
            return self.decode * whole_s
        decode_s = self.cost(work.without_prompts()) if work.decode_tokens else 0.0
        return self.prefill * (whole_s - decode_s) + self.decode * decode_s


PRESETS: Mapping[str, StepCost] = MappingProxyType(
    {
        # SmolLM2-135M, bf16, one CPU core, eager: a prompt of 512 tokens takes 0.4 s, of 6,000 9 s; a single
        # stream takes 57 ms per token, each of 16 streams 74 ms.
        "cpu-demo": StepCost(
            floor_s=0.056,
            knee_tokens=96,
            beyond_knee_s_per_token=0.76e-3,
            attention_s_per_token_pair=0.25e-6,
            kv_read_s_per_token=2.2e-6,
            per_request_s=1.1e-3,
        ),
        # For tests: about a millisecond per step, but long prompts are still visible.
        "fast": StepCost(
            floor_s=1.0e-3,
            knee_tokens=256,
            beyond_knee_s_per_token=2.0e-6,
            attention_s_per_token_pair=0.5e-9,
            kv_read_s_per_token=1.0e-9,
            per_request_s=5.0e-6,
        ),
    }
)


def preset(name: str) -> StepCost:
    """A cost by its name."""
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}", hint=f"accepted: {', '.join(PRESETS)}")
    return PRESETS[name]

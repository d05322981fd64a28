"""Step costs for fake engines by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from phasewise.core.errors import UsageError
from phasewise.costs.fit.step import StepCost

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

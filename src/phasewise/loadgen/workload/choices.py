"""A load from the options that describe it, as the commands and the Python API take them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phasewise.core.errors import UsageError
from phasewise.loadgen.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, Spacing
from phasewise.loadgen.workload.drafts import Conversations
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.presets import PRESETS, PresetName, Shape
from phasewise.loadgen.workload.prompts import TEMPLATE_TOKENS
from phasewise.loadgen.workload.traces import Trace, read_trace

DEFAULT_CONCURRENCY = 4
OWN_TOKENS = 8
"""The fewest tokens that a prompt has after a shared system prompt."""


def choose_source(
    preset: PresetName,
    trace: Path | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prefix_tokens: int | None,
    shared_prefixes: int | None,
) -> Shape | Trace:
    """The trace, or the preset with the lengths that were given."""
    if trace is None:
        return choose_shape(
            PRESETS[preset], prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
        )
    if (prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes) != (None,) * 4:
        raise UsageError(
            "--trace was given together with --prompt-tokens, --output-tokens or a shared prefix",
            hint="a trace has its own lengths: remove one of them",
        )
    return read_trace(trace)


def choose_shape(
    shape: Shape,
    prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prefix_tokens: int | None,
    shared_prefixes: int | None,
) -> Shape:
    """The shape with the lengths that were given."""
    if prompt_tokens is not None:
        shape = replace(shape, prompt=Lengths.fixed(prompt_tokens))
        if shared_prefix_tokens is None:
            # A fixed length drops the preset's system prompt, which may not even fit.
            shape = replace(shape, shared_prefix_tokens=0)
    if output_tokens is not None:
        shape = replace(shape, output=Lengths.fixed(output_tokens))
    if shared_prefix_tokens is not None:
        shape = _behind_prefix(shape, shared_prefix_tokens)
    if shared_prefixes is not None:
        shape = replace(shape, shared_prefixes=shared_prefixes)
    return shape


def _behind_prefix(shape: Shape, prefix_tokens: int) -> Shape:
    """The shape with a system prompt of this length before every prompt.

    The preset's shortest prompts get longer to hold it. If the prefix is longer than the preset's own, all
    prompts get longer by the difference, so that the users' part stays. A fixed prompt length is kept.
    """
    exact = shape.prompt.spread == 0
    if prefix_tokens < 0 or (exact and 0 < prefix_tokens > shape.prompt.low_tokens - TEMPLATE_TOKENS - 1):
        raise UsageError(
            f"a shared prefix of {prefix_tokens} tokens does not fit prompts of {shape.prompt.low_tokens}",
            hint=f"raise --prompt-tokens or lower --shared-prefix-tokens: a prompt has {TEMPLATE_TOKENS} "
            "tokens of a chat template and a word of its own",
        )
    shortest = prefix_tokens + TEMPLATE_TOKENS + OWN_TOKENS
    prompt = shape.prompt
    if not exact and prefix_tokens and prompt.low_tokens < shortest:
        longer = max(prefix_tokens - shape.shared_prefix_tokens, 0)
        median_tokens = max(prompt.median_tokens + longer, shortest)
        high_tokens = max(prompt.high_tokens + longer, median_tokens)
        prompt = replace(prompt, median_tokens=median_tokens, low_tokens=shortest, high_tokens=high_tokens)
    return replace(shape, prompt=prompt, shared_prefix_tokens=prefix_tokens, shared_share=1.0)


def choose_load(
    rate: float | None,
    spacing: Spacing,
    burstiness: float,
    concurrency: int | None,
    speed: float | None = None,
) -> Load:
    """An open loop if a rate was given, else a closed loop; a trace without either keeps its own times."""
    if rate is not None and concurrency is not None:
        raise UsageError("--rate and --concurrency were both given", hint="give only one of them")
    if rate is not None:
        return OpenLoop(rate, spacing, burstiness)
    if concurrency is None and speed is not None:
        return Replay(speed)
    return ClosedLoop(DEFAULT_CONCURRENCY if concurrency is None else concurrency)


def choose_conversations(turns: int, think_s: float) -> Conversations | None:
    """Conversations of several turns; None for a single turn."""
    if turns < 1 or think_s < 0:
        raise UsageError(
            f"--turns {turns} and --think {think_s:g}", hint="use at least 1 turn, and at least 0 s"
        )
    return Conversations(turns, think_s) if turns > 1 else None

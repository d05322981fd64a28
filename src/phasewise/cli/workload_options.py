"""The options that say what load to put on a server, shared by the commands that do so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phasewise.bench.session import CacheState
from phasewise.errors import ConfigError
from phasewise.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, Spacing
from phasewise.workload.conversations import Conversations
from phasewise.workload.lengths import Lengths
from phasewise.workload.presets import PRESETS, PresetName, Shape
from phasewise.workload.prompts import TEMPLATE_TOKENS
from phasewise.workload.traces import Trace, read_trace

DEFAULT_CONCURRENCY = 4
OWN_TOKENS = 8
"""What a prompt has of its own, at the least, behind a system prompt that a preset was not made for."""

WHAT = "What is asked"
WHEN = "When it is sent"
SERVER = "The server"
RESULT = "The result"
SEVERAL = "Several runs"

Preset = Annotated[PresetName, typer.Option(help="The kind of traffic.", rich_help_panel=WHAT)]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Replay a trace's lengths, shared prefixes and, without --rate or --concurrency, its times: an "
        "Azure LLM inference CSV or a Mooncake JSONL.",
        rich_help_panel=WHAT,
    ),
]
Speed = Annotated[
    float, typer.Option(help="Replay a trace's times this many times faster.", rich_help_panel=WHEN)
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Requests (with --turns: conversations) per second, whatever the replies do.",
        rich_help_panel=WHEN,
    ),
]
SpacingChoice = Annotated[
    Spacing, typer.Option("--spacing", help="How arrivals at a --rate are spread.", rich_help_panel=WHEN)
]
Burstiness = Annotated[
    float,
    typer.Option(
        help="With --spacing gamma: the variance of the gaps over their mean squared. 1 is Poisson, more "
        "comes in bursts (vLLM's option of this name is the inverse).",
        rich_help_panel=WHEN,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        help=f"Requests open at once instead of a rate. (default {DEFAULT_CONCURRENCY})", rich_help_panel=WHEN
    ),
]
PromptTokens = Annotated[int | None, typer.Option(help="Fix the prompts' length.", rich_help_panel=WHAT)]
OutputTokens = Annotated[int | None, typer.Option(help="Fix the outputs' length.", rich_help_panel=WHAT)]
SharedPrefixTokens = Annotated[
    int | None,
    typer.Option(
        help="Begin every prompt with a system prompt of this length; 0 for none.", rich_help_panel=WHAT
    ),
]
SharedPrefixes = Annotated[
    int | None,
    typer.Option(help="How many different system prompts there are. (default 1)", rich_help_panel=WHAT),
]
Turns = Annotated[
    int,
    typer.Option(
        help="Turns of a conversation; each follows the real reply to the one before.", rich_help_panel=WHAT
    ),
]
Think = Annotated[
    float,
    typer.Option(
        help="Mean seconds between a reply and the next turn, drawn exponentially.", rich_help_panel=WHAT
    ),
]
Cache = Annotated[
    CacheState,
    typer.Option(
        help="What the engine's prefix cache holds at the start: nothing of this run's prompts, or all of "
        "them (every prompt is sent once before).",
        rich_help_panel=WHAT,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="The model to ask for. (default: the first one served)", rich_help_panel=SERVER),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="PHASEWISE_API_KEY", help="Sent as a bearer token.", show_envvar=True, rich_help_panel=SERVER
    ),
]
SloText = Annotated[
    str,
    typer.Option("--slo", help="What counts as fast enough: ttft=500ms,tpot=50ms.", rich_help_panel=RESULT),
]
Timeout = Annotated[float, typer.Option(help="Seconds that one request may take.", rich_help_panel=SERVER)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RESULT)]


def choose_source(
    preset: PresetName,
    trace: Path | None,
    prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prefix_tokens: int | None,
    shared_prefixes: int | None,
) -> Shape | Trace:
    """The trace, or the preset with what was asked for explicitly put in its place."""
    if trace is None:
        return choose_shape(
            PRESETS[preset], prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes
        )
    if (prompt_tokens, output_tokens, shared_prefix_tokens, shared_prefixes) != (None,) * 4:
        raise ConfigError(
            "--trace was given together with lengths", hint="a trace has its own: leave one of them out"
        )
    return read_trace(trace)


def choose_shape(
    shape: Shape,
    prompt_tokens: int | None,
    output_tokens: int | None,
    shared_prefix_tokens: int | None,
    shared_prefixes: int | None,
) -> Shape:
    """The shape with what was asked for explicitly put in its place."""
    if prompt_tokens is not None:
        shape = replace(shape, prompt=Lengths.fixed(prompt_tokens))
        if shared_prefix_tokens is None:
            # Whoever fixes the prompt means a plain one: a preset's own system prompt may not even fit.
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

    A preset makes room for it: its shortest prompts get longer. Where the prefix is longer than the preset's
    own, so do all others, by as much: what users add to it stays. A length asked for exactly is kept to.
    """
    exact = shape.prompt.spread == 0
    if prefix_tokens < 0 or (exact and 0 < prefix_tokens > shape.prompt.low_tokens - TEMPLATE_TOKENS - 1):
        raise ConfigError(
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
    """An open loop if a rate was given, else a closed one; a trace without either keeps its own times."""
    if rate is not None and concurrency is not None:
        raise ConfigError(
            "--rate and --concurrency were both given", hint="give one: they exclude each other"
        )
    if rate is not None:
        return OpenLoop(rate, spacing, burstiness)
    if concurrency is None and speed is not None:
        return Replay(speed)
    return ClosedLoop(DEFAULT_CONCURRENCY if concurrency is None else concurrency)


def choose_conversations(turns: int, think_s: float) -> Conversations | None:
    """Conversations of several turns; a single turn is none."""
    if turns < 1 or think_s < 0:
        raise ConfigError(f"{turns} turns and {think_s:g} s of thinking", hint="use 1 turn or more, and 0 s")
    return Conversations(turns, think_s) if turns > 1 else None

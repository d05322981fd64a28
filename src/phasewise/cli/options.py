"""The options that describe a load, shared by the commands that send one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli import help_style
from phasewise.clients.key_file import read_key
from phasewise.core.errors import ConfigError
from phasewise.loadgen.session import CacheState
from phasewise.loadgen.workload.arrivals import ClosedLoop, Load, OpenLoop, Replay, Spacing
from phasewise.loadgen.workload.drafts import Conversations
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.presets import PRESETS, PresetName, Shape
from phasewise.loadgen.workload.prompts import TEMPLATE_TOKENS
from phasewise.loadgen.workload.traces import Trace, read_trace

DEFAULT_CONCURRENCY = 4
OWN_TOKENS = 8
"""The fewest tokens that a prompt has after a shared system prompt."""

WHEN = "Load"
WHAT = "Requests"
SERVER = "Server"
RESULT = help_style.RESULT
DIAGNOSIS = "Diagnosis"
SEVERAL = "Several runs"

Preset = Annotated[PresetName, typer.Option(help="The workload preset.", rich_help_panel=WHAT)]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        help="Replay a trace's lengths and shared prefixes, and its times unless --rate or --concurrency is "
        "given: an Azure LLM inference CSV or a Mooncake JSONL.",
        rich_help_panel=WHAT,
    ),
]
Speed = Annotated[float, typer.Option(help="Replay a trace this many times faster.", rich_help_panel=WHEN)]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Requests per second (with --turns: conversations), sent without waiting for replies.",
        rich_help_panel=WHEN,
    ),
]
SpacingChoice = Annotated[
    Spacing, typer.Option("--spacing", help="Distribution of the arrivals at a --rate.", rich_help_panel=WHEN)
]
Burstiness = Annotated[
    float,
    typer.Option(
        help="With --spacing gamma: variance of the gaps divided by their squared mean. 1 is Poisson, more "
        "is burstier (vLLM's option of this name is the inverse).",
        rich_help_panel=WHEN,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        help=f"Requests open at once, instead of a --rate. (default: {DEFAULT_CONCURRENCY})",
        rich_help_panel=WHEN,
    ),
]
PromptTokens = Annotated[
    int | None, typer.Option(help="Length of every prompt, instead of the preset's.", rich_help_panel=WHAT)
]
OutputTokens = Annotated[
    int | None, typer.Option(help="Length of every output, instead of the preset's.", rich_help_panel=WHAT)
]
SharedPrefixTokens = Annotated[
    int | None,
    typer.Option(
        help="Begin every prompt with a system prompt of this length; 0 for none.", rich_help_panel=WHAT
    ),
]
SharedPrefixes = Annotated[
    int | None,
    typer.Option(help="Number of different system prompts. (default: 1)", rich_help_panel=WHAT),
]
Turns = Annotated[
    int,
    typer.Option(
        help="Turns per conversation; each turn follows the real reply to the last one.", rich_help_panel=WHAT
    ),
]
Think = Annotated[
    float,
    typer.Option(
        help="Mean seconds between a reply and the next turn (exponentially distributed).",
        rich_help_panel=WHAT,
    ),
]
Cache = Annotated[
    CacheState,
    typer.Option(
        help="State of the prefix cache at the start: `cold` holds none of this run's prompts, `warm` all of "
        "them (each is sent once before).",
        rich_help_panel=WHAT,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="The model of the requests. (default: the first one served)", rich_help_panel=SERVER),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="PHASEWISE_API_KEY",
        help="API key, sent as a bearer token.",
        show_envvar=True,
        rich_help_panel=SERVER,
    ),
]
SloText = Annotated[
    str,
    typer.Option("--slo", help="Latency objectives, such as ttft=500ms,tpot=50ms.", rich_help_panel=RESULT),
]
Timeout = Annotated[float, typer.Option(help="Timeout of one request, in seconds.", rich_help_panel=SERVER)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RESULT)]


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
        raise ConfigError(
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
    """An open loop if a rate was given, else a closed loop; a trace without either keeps its own times."""
    if rate is not None and concurrency is not None:
        raise ConfigError("--rate and --concurrency were both given", hint="give only one of them")
    if rate is not None:
        return OpenLoop(rate, spacing, burstiness)
    if concurrency is None and speed is not None:
        return Replay(speed)
    return ClosedLoop(DEFAULT_CONCURRENCY if concurrency is None else concurrency)


def choose_conversations(turns: int, think_s: float) -> Conversations | None:
    """Conversations of several turns; None for a single turn."""
    if turns < 1 or think_s < 0:
        raise ConfigError(
            f"--turns {turns} and --think {think_s:g}", hint="use at least 1 turn, and at least 0 s"
        )
    return Conversations(turns, think_s) if turns > 1 else None


# --- The options of a diagnosis that more than one command has.


def key_or_its_file(given: str | None) -> str | None:
    """A key from the command line; `@FILE` is read, because others can see a process's arguments."""
    if given is None or not given.startswith("@"):
        return given
    return read_key(Path(given[1:]).absolute(), "the key")


AdminKey = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar="PHASEWISE_ADMIN_KEY",
        callback=key_or_its_file,
        help="The gateway's admin key, or @FILE. (default: found for a gateway on this machine)",
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        metavar="FILE",
        help="Step costs, as saved by `phasewise engine calibrate URL --save FILE`. "
        "(default: fitted to the window's own steps)",
        rich_help_panel=DIAGNOSIS,
    ),
]


def reject_typed_beside(ctx: typer.Context, option: str, allowed: set[str]) -> None:
    """ConfigError for options that would be ignored."""
    sources = {each.opts[0]: ctx.get_parameter_source(each.name or "") for each in ctx.command.params}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if ignored := sorted(typed - allowed - {option}):
        raise ConfigError(
            f"{option} was given together with {', '.join(ignored)}", hint=f"remove what {option} ignores"
        )

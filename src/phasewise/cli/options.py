"""The options that describe a load, shared by the commands that send one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli import help_style
from phasewise.clients.key_file import key_or_its_file
from phasewise.core.errors import UsageError
from phasewise.loadgen.session import CacheState
from phasewise.loadgen.workload.arrivals import Spacing
from phasewise.loadgen.workload.choices import DEFAULT_CONCURRENCY
from phasewise.loadgen.workload.presets import PresetName

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
HtmlPage = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Write an HTML page with charts to this file; it opens offline.",
        rich_help_panel=RESULT,
    ),
]


# --- The options of a diagnosis that more than one command has.


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
    """UsageError for options that would be ignored."""
    sources = {each.opts[0]: ctx.get_parameter_source(each.name or "") for each in ctx.command.params}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if ignored := sorted(typed - allowed - {option}):
        raise UsageError(
            f"{option} was given together with {', '.join(ignored)}", hint=f"remove what {option} ignores"
        )


def typed(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was given on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"

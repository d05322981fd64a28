"""The load options on the command line: what the help says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from phasewise.api.load_options import DEFAULT_CONCURRENCY, takes_load_options
from phasewise.benchmark.session import CacheState
from phasewise.benchmark.workload.arrivals import Spacing
from phasewise.benchmark.workload.presets import PresetName
from phasewise.cli.options import WHAT, WHEN, SloText

Cache = Annotated[
    CacheState,
    typer.Option(
        help="State of the prefix cache at the start: `cold` holds none of this run's prompts, `warm` all of "
        "them (each is sent once before).",
        rich_help_panel=WHAT,
    ),
]
_Command = TypeVar("_Command", bound=Callable[..., None])

LOAD_OPTIONS: Mapping[str, Any] = {
    "concurrency": Annotated[
        int | None,
        typer.Option(
            help=f"Requests open at once, instead of a --rate. (default: {DEFAULT_CONCURRENCY})",
            rich_help_panel=WHEN,
        ),
    ],
    "rate": Annotated[
        float | None,
        typer.Option(
            help="Requests per second (with --turns: conversations), sent without waiting for replies.",
            rich_help_panel=WHEN,
        ),
    ],
    "duration": Annotated[
        float | None, typer.Option(help="Seconds in which requests arrive.", rich_help_panel=WHEN)
    ],
    "spacing": Annotated[
        Spacing, typer.Option(help="Distribution of the arrivals at a --rate.", rich_help_panel=WHEN)
    ],
    "burstiness": Annotated[
        float,
        typer.Option(
            help="With --spacing gamma: variance of the gaps divided by their squared mean. 1 is Poisson, "
            "more is burstier (vLLM's option of this name is the inverse).",
            rich_help_panel=WHEN,
        ),
    ],
    "speed": Annotated[
        float, typer.Option(help="Replay a trace this many times faster.", rich_help_panel=WHEN)
    ],
    "preset": Annotated[PresetName, typer.Option(help="The workload preset.", rich_help_panel=WHAT)],
    "prompt_tokens": Annotated[
        int | None,
        typer.Option(help="Length of every prompt, instead of the preset's.", rich_help_panel=WHAT),
    ],
    "output_tokens": Annotated[
        int | None,
        typer.Option(help="Length of every output, instead of the preset's.", rich_help_panel=WHAT),
    ],
    "shared_prefix_tokens": Annotated[
        int | None,
        typer.Option(
            help="Begin every prompt with a system prompt of this length; 0 for none.", rich_help_panel=WHAT
        ),
    ],
    "shared_prefixes": Annotated[
        int | None,
        typer.Option(help="Number of different system prompts. (default: 1)", rich_help_panel=WHAT),
    ],
    "turns": Annotated[
        int,
        typer.Option(
            help="Turns per conversation; each turn follows the real reply to the last one.",
            rich_help_panel=WHAT,
        ),
    ],
    "think": Annotated[
        float,
        typer.Option(
            help="Mean seconds between a reply and the next turn (exponentially distributed).",
            rich_help_panel=WHAT,
        ),
    ],
    "trace": Annotated[
        Path | None,
        typer.Option(
            help="Replay a trace's lengths and shared prefixes, and its times unless --rate or --concurrency "
            "is given: an Azure LLM inference CSV, a Mooncake JSONL, or timelines that a gateway, `bench` or "
            "`simulate` recorded (NDJSON).",
            rich_help_panel=WHAT,
        ),
    ],
    "seed": Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Repeat the arrival times, lengths and words of another run.",
            rich_help_panel=WHAT,
        ),
    ],
    "slo": SloText,
}
"""All of them but `requests`, whose default is each command's own."""


def load_options(
    requests: str, fewest_requests: int = 1, without: Set[str] = frozenset()
) -> Callable[[_Command], _Command]:
    """A decorator that gives a command the load options; `requests` is its help for --requests."""
    option = typer.Option(min=fewest_requests, help=requests, rich_help_panel=WHEN)
    return takes_load_options({**LOAD_OPTIONS, "requests": Annotated[int | None, option]}, without)

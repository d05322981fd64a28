"""The load options on the command line: what the help says of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, TypeVar

from phasewise.api.load_options import DEFAULT_CONCURRENCY, LoadOptions, takes_load_options
from phasewise.benchmark.session import CacheState
from phasewise.benchmark.workload.arrivals import Spacing
from phasewise.benchmark.workload.presets import PresetName
from phasewise.cli.options import ApiKey, Model, SloText, Timeout, load_option, request_option

_Command = TypeVar("_Command", bound=Callable[..., None])

LOAD_OPTIONS: Mapping[str, Any] = {
    "concurrency": Annotated[
        int | None,
        load_option(help=f"Requests open at once, instead of a --rate. (default: {DEFAULT_CONCURRENCY})"),
    ],
    "rate": Annotated[
        float | None,
        load_option(
            help="Requests per second (with --turns: conversations), sent without waiting for replies."
        ),
    ],
    "duration": Annotated[float | None, load_option(help="Seconds in which requests arrive.")],
    "spacing": Annotated[Spacing, load_option(help="Distribution of the arrivals at a --rate.")],
    "burstiness": Annotated[
        float,
        load_option(
            help="With --spacing gamma: variance of the gaps divided by their squared mean. 1 is Poisson, "
            "more is burstier (vLLM's option of this name is the inverse)."
        ),
    ],
    "speed": Annotated[float, load_option(help="Replay a trace this many times faster.")],
    "preset": Annotated[PresetName, request_option(help="The workload preset.")],
    "prompt_tokens": Annotated[
        int | None, request_option(help="Length of every prompt, instead of the preset's.")
    ],
    "output_tokens": Annotated[
        int | None, request_option(help="Length of every output, instead of the preset's.")
    ],
    "shared_prefix_tokens": Annotated[
        int | None, request_option(help="Begin every prompt with a system prompt of this length; 0 for none.")
    ],
    "shared_prefixes": Annotated[
        int | None, request_option(help="Number of different system prompts. (default: 1)")
    ],
    "turns": Annotated[
        int, request_option(help="Turns per conversation; each turn follows the real reply to the last one.")
    ],
    "think": Annotated[
        float,
        request_option(help="Mean seconds between a reply and the next turn (exponentially distributed)."),
    ],
    "trace": Annotated[
        Path | None,
        request_option(
            help="Replay a trace's lengths and shared prefixes, and its times unless --rate or --concurrency "
            "is given: an Azure LLM inference CSV, a Mooncake JSONL, or timelines that a gateway, `bench` or "
            "`simulate` recorded (NDJSON)."
        ),
    ],
    "seed": Annotated[
        int | None, request_option(min=0, help="Repeat the arrival times, lengths and words of another run.")
    ],
    "slo": SloText,
    "cache": Annotated[
        CacheState,
        request_option(
            help="State of the prefix cache at the start: `cold` holds none of this run's prompts, `warm` "
            "all of them (each is sent once before)."
        ),
    ],
    "model": Model,
    "api_key": ApiKey,
    "timeout": Timeout,
}
"""All of them but `requests`, whose default is each command's own."""


def load_options(
    options: type[LoadOptions], requests: str, fewest_requests: int = 1, without: Set[str] = frozenset()
) -> Callable[[_Command], _Command]:
    """A decorator that gives a command these options; `requests` is its help for --requests."""
    option = load_option(min=fewest_requests, help=requests)
    annotations = {**LOAD_OPTIONS, "requests": Annotated[int | None, option]}
    return takes_load_options(options, annotations, without)

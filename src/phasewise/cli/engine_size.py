"""The options of commands that start engines of one size for their measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from phasewise.cli.engine import ENGINE_PYTHON_HELP, current_engine
from phasewise.fleet.engines.environment import EngineEnvironment

ENGINES = "Engines"
FEWEST_CONTEXT_TOKENS = 2304
"""The longest prompts of the measurements have 2,000 tokens."""

Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores per engine, on a CPU. (default: 1)", rich_help_panel=ENGINES)
]
Gpus = Annotated[
    int | None, typer.Option(min=1, help="GPUs per engine. (default: 1)", rich_help_panel=ENGINES)
]
KvCacheMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="KV cache size of each engine, such as 2GiB. (default: 1GiB on a CPU, else vLLM's)",
        rich_help_panel=ENGINES,
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=FEWEST_CONTEXT_TOKENS,
        metavar="TOKENS",
        help="Longest prompt plus answer, in tokens. (default: the model's, at most 8192)",
        rich_help_panel=ENGINES,
    ),
]
Python = Annotated[
    Path | None, typer.Option(metavar="PATH", help=ENGINE_PYTHON_HELP, rich_help_panel=ENGINES)
]


def engine_to_start(engine_python: Path | None) -> EngineEnvironment:
    """The engine; `phasewise up`, which starts it, finds the same one."""
    engine = current_engine(engine_python)
    if engine_python is not None:
        os.environ["PHASEWISE_ENGINE_PYTHON"] = str(engine_python.absolute())
    return engine

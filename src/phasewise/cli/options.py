"""The options that more than one command has, the panels of the help, and what commands print and write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from phasewise.cli.groups import RESULTS
from phasewise.clients.key_file import key_or_its_file
from phasewise.core import timeline_record
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.timeline import Timeline
from phasewise.report.console import err


def in_panel(panel: str) -> Callable[..., Any]:
    """`typer.Option` for the options of one panel of the help."""
    return partial(typer.Option, rich_help_panel=panel)


load_option = in_panel("Load")
request_option = in_panel("Requests")
server_option = in_panel("Server")
result_option = in_panel(RESULTS)
diagnosis_option = in_panel("Diagnosis")
series_option = in_panel("Several runs")

Model = Annotated[
    str | None, server_option(help="The model of the requests. (default: the first one served)")
]
ApiKey = Annotated[
    str | None,
    server_option(envvar="PHASEWISE_API_KEY", help="API key, sent as a bearer token.", show_envvar=True),
]
SloText = Annotated[str, result_option(help="Latency objectives, such as ttft=500ms,tpot=50ms.")]
Timeout = Annotated[float, server_option(help="Timeout of one request, in seconds.")]
AsJson = Annotated[bool, result_option("--json", help="Print the result as one JSON object.")]
HtmlPage = Annotated[
    Path | None,
    result_option(help="Write an HTML page with charts to this file; it opens offline."),
]


# --- The options of a diagnosis that more than one command has.


AdminKey = Annotated[
    str | None,
    server_option(
        envvar="PHASEWISE_ADMIN_KEY",
        callback=key_or_its_file,
        help="The gateway's admin key, or @FILE. (default: found for a gateway on this machine)",
    ),
]
StepsUrl = Annotated[
    str | None,
    server_option(help="Address of the engine's step recorder. (default: the engine's port + 10000)"),
]
Costs = Annotated[
    Path | None,
    diagnosis_option(
        help="Step costs, as saved by `phasewise engine calibrate URL --save FILE`. "
        "(default: fitted to the window's own steps)",
    ),
]


_WHICH = "The gateway's address, its fleet file or its gateway file. (default: the one that runs here)"
Timelines = Annotated[
    Path | None, result_option(help="Write the timeline of every request to this file (NDJSON).")
]
GatewayOption = Annotated[str | None, typer.Option(metavar="URL|FILE.YAML", help=_WHICH)]
GatewayArgument = Annotated[str | None, typer.Argument(metavar="GATEWAY", help=_WHICH, show_default=False)]


def typed_options(ctx: typer.Context) -> set[str]:
    """The options and arguments that were given on the command line."""
    sources = {param.opts[0]: ctx.get_parameter_source(param.name or "") for param in ctx.command.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def reject_typed_beside(ctx: typer.Context, option: str, allowed: set[str]) -> None:
    """UsageError for options that would be ignored."""
    if ignored := sorted(typed_options(ctx) - allowed - {option}):
        raise UsageError(
            f"{option} was given together with {', '.join(ignored)}", hint=f"remove what {option} ignores"
        )


def print_json(facts: object, *, indented: bool = False) -> None:
    """Print the result of a command as one JSON object."""
    typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2 if indented else None).decode())


def say(words: str) -> None:
    """A line on stderr, for what happens during a command and which files it wrote."""
    err.print(words, style="dim", soft_wrap=True, markup=False)


def reject_unwritable(option: str, path: Path | None) -> None:
    """ConfigError if a file cannot be written; the file is not changed."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written ({error.strerror})", hint="give another file"
        ) from error
    if is_new:
        path.unlink()


def write_timelines(path: Path | None, timelines: Iterable[Timeline]) -> None:
    """Write a line for each request, if a file for them was given."""
    if path is not None:
        path.write_bytes(b"".join(timeline_record.encode(timeline) + b"\n" for timeline in timelines))

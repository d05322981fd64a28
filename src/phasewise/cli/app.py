"""The command line: registers one module per command and turns domain errors into sentences."""

from __future__ import annotations

import sys

import typer

from phasewise import __version__
from phasewise.cli import (
    bench,
    cache,
    calibrate,
    check,
    compare,
    diagnose,
    down,
    engine,
    explain,
    fake_engine,
    gateway,
    ledger,
    levers,
    model,
    status,
    up,
)
from phasewise.cli.console import fail
from phasewise.errors import PhasewiseError

app = typer.Typer(
    name="phasewise",
    help="Is your vLLM slow to start or slow to stream? Serve it, see every millisecond, decide.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("down")(down.down)
app.add_typer(engine.app, name="engine")
app.add_typer(model.app, name="model")
app.command("check")(check.check)
app.command("gateway")(gateway.gateway)
app.command("bench")(bench.bench)
app.command("compare")(compare.compare)
app.command("calibrate")(calibrate.calibrate)
app.command("levers")(levers.levers)
app.command("diagnose")(diagnose.diagnose)
app.command("explain")(explain.explain)
app.command("ledger")(ledger.ledger)
app.add_typer(cache.app, name="cache")
app.command("fake-engine")(fake_engine.fake_engine)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phasewise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    del version


def main() -> None:
    """Run the command line; a domain error ends as one sentence and exit code 1, Ctrl-C as 130."""
    try:
        app()
    except PhasewiseError as error:
        fail(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)

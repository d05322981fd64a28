"""`phasewise ledger`: every prediction beside what was then measured, and how often they held."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.cli.console import err, out
from phasewise.cli.ledger_view import render
from phasewise.config import phasewise_home
from phasewise.verify.ledger import score
from phasewise.verify.ledger_file import LEDGER_VERSION, LedgerContents, LedgerFile, default_ledger

Ledger = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        metavar="FILE",
        help="The ledger of predictions and outcomes. (default: ledger.jsonl in the data folder)",
    ),
]


def ledger(
    ledger_file: Ledger = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ledger as one JSON object.")] = False,
) -> None:
    """Show every prediction that `diagnose --verify` made, what was then measured, and the score.

    The score counts the figure that each fix aimed at: how many lay within what was predicted, how many went
    the way that was predicted, and how many are still open, inconclusive or were never predicted.
    """
    file = chosen_ledger(ledger_file)
    contents = file.read()
    if as_json:
        typer.echo(orjson.dumps(_facts(contents), option=orjson.OPT_INDENT_2).decode())
        return
    if contents.entries:
        out.print(render(contents.entries))
    else:
        err.print(
            f"{file.path} holds no predictions: `phasewise diagnose FLEET.YAML --verify` makes them",
            soft_wrap=True,
            markup=False,
        )
    if contents.passed_over:
        err.print(
            f"{contents.passed_over} lines were passed over: torn, or written by another version of phasewise"
        )


def chosen_ledger(path: Path | None) -> LedgerFile:
    """The ledger that was asked for, or the one in the data folder."""
    return LedgerFile(default_ledger(phasewise_home(os.environ)) if path is None else path)


def _facts(contents: LedgerContents) -> dict[str, object]:
    return {
        "v": LEDGER_VERSION,
        "score": asdict(score(contents.entries)),
        "entries": [asdict(entry) for entry in contents.entries],
        "passed_over": contents.passed_over,
    }

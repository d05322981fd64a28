"""The consoles of the command line: results go to stdout, progress and errors to stderr."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from phasewise.core.errors import PhasewiseError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(error: PhasewiseError) -> None:
    """Print a domain error the way every command does."""
    err.print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True)
    if error.hint:
        err.print(f"[bold]hint:[/] {escape(error.hint)}", soft_wrap=True)

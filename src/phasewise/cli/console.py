"""Where the command line writes: results to stdout, progress and errors to stderr, colour only if wanted."""

from __future__ import annotations

from rich.console import Console

from phasewise.errors import PhasewiseError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(error: PhasewiseError) -> None:
    """Print a domain error the way every command does."""
    err.print(f"[bold red]error:[/] {error.message}", markup=True, soft_wrap=True)
    if error.hint:
        err.print(f"[bold]hint:[/] {error.hint}", soft_wrap=True)

"""Command groups that import a command only when it is called: importing all takes a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand

from phasewise.cli.help_style import HelpCommand, HelpGroup


@dataclass(frozen=True, slots=True)
class Leaf:
    """A command: where its function is, as `module:function` of this package, and one line about it."""

    function: str
    line: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A group of commands, and one line about it."""

    commands: Mapping[str, Leaf]
    line: str


Panels = Mapping[str | None, Mapping[str, Leaf | Branch]]
"""Commands by help panel; None is the default panel."""


class LazyGroup(HelpGroup):
    """Knows each command's name and summary, so that help and completion import none of them."""

    def __init__(self, *, panels: Panels, **of_typer: Any) -> None:  # noqa: ANN401 - whatever typer gives
        super().__init__(**of_typer)
        self._panels = panels
        self._entries = {name: entry for panel in panels.values() for name, entry in panel.items()}
        # Typer suggests these names for a misspelled command.
        self.commands = dict.fromkeys(self._entries, cast(Any, None))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - of typer's own click, or of click
        entry = self._entries.get(cmd_name)
        if isinstance(entry, Branch):
            return _branch(cmd_name, entry)
        return None if entry is None else _leaf(cmd_name, entry.function)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - see above
        self._outline().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - see above
        ctx.command = self._outline()
        return ctx.command.shell_complete(ctx, incomplete)

    def _outline(self) -> HelpGroup:
        """The group with commands that have only a name and a summary."""
        commands = {
            name: TyperCommand(name, help=entry.line, rich_help_panel=panel)
            for panel, entries in self._panels.items()
            for name, entry in entries.items()
        }
        return HelpGroup(name=self.name, commands=cast(Any, commands), help=self.help, params=self.params)


def _branch(name: str, branch: Branch) -> LazyGroup:
    return LazyGroup(name=name, panels={None: branch.commands}, help=branch.line, no_args_is_help=True)


@cache
def _leaf(name: str, where: str) -> Any:  # noqa: ANN401 - see above
    module, _, function = where.partition(":")
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=HelpCommand)(getattr(import_module(f"phasewise.cli.{module}"), function))
    command = typer.main.get_command(alone)
    # Typer keeps the line breaks of a docstring, which are not those of a terminal.
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    return command

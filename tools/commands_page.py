"""Writes docs/reference/commands.md from the command line itself; a test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperGroup

from phasewise.cli.app import app

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Written by `python tools/commands_page.py`. Results go to stdout, progress and errors to stderr; `NO_COLOR` is
respected. Exit codes: 0 done, 1 a sentence says what went wrong, 2 wrong usage, 130 Ctrl-C.
"""


def page() -> str:
    """The whole page."""
    root = typer.main.get_command(app)
    return HEAD + "".join(
        section for name, command in walk("phasewise", root) for section in render(name, command)
    )


def walk(name: str, command: object) -> Iterator[tuple[str, object]]:
    """Every command that does something, depth first."""
    if isinstance(command, TyperGroup):
        for child, inner in command.commands.items():
            yield from walk(f"{name} {child}", inner)
    else:
        yield name, command


def render(name: str, command: object) -> Iterator[str]:
    """One command: what it does and every argument and option."""
    yield f"\n## {name}\n\n{' '.join((command.help or '').split())}\n"
    rows = [row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield "\n| | | default |\n|---|---|---|\n" + "".join(rows)


def row(parameter: object) -> str:
    """One argument or option as a table row."""
    flags = [*parameter.opts, *parameter.secondary_opts]
    label = ", ".join(flags) if flags[0].startswith("-") else flags[0].upper()
    text = " ".join((getattr(parameter, "help", "") or "").split())
    if parameter.envvar:
        text += f" (or `{parameter.envvar}`)"
    default = (
        "" if parameter.default in {None, False, ""} or callable(parameter.default) else parameter.default
    )
    required = "required" if parameter.required else default
    return f"| `{label}` | {text.replace('|', '&#124;')} | {required} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

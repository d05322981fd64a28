"""Writes docs/reference/commands.md from the command line itself; a test compares the two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from phasewise.cli.app import app
from phasewise.cli.groups import styled

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Written by `python tools/commands_page.py`. Commands and options; `phasewise COMMAND --help` says what
each option means and its default. `phasewise --version --verbose` prints what a bug report needs, and
`phasewise --install-completion` adds completion to your shell.

- Results go to stdout, progress and errors to stderr. `--json` prints one JSON object. `NO_COLOR` works.
- Exit codes: 0 done, 1 an error with a sentence on stderr, 2 wrong usage, 130 Ctrl-C. `diagnose` has
  [its own](diagnose.md#exit-codes). `status` exits with 1 unless every process serves, `check` if anything is
  wrong, `bench` if the run is void. `explain` exits
  with 2 if several requests have the id.
- SECONDS may have a unit: 500ms, 30s, 2m, 1h. An address without a scheme, `localhost:8000`, is http.
- Engines, models, logs, admin keys and predictions are in the data folder: `PHASEWISE_HOME`, else
  `$XDG_DATA_HOME/phasewise`, else `~/.local/share/phasewise`.

| variable | meaning |
|---|---|
| `PHASEWISE_HOME` | the data folder |
| `PHASEWISE_ENGINE_PYTHON` | the Python that has vLLM, as `--engine-python` |
| `PHASEWISE_API_KEY` | the key for requests, as `--api-key` |
| `PHASEWISE_ADMIN_KEY` | a gateway's admin key, as `--admin-key` |
| `PHASEWISE_STEPS_ADDR`, `..._RING`, `PHASEWISE_FIXES` | of the engine's [step recorder](step-record.md) |
"""


def page() -> str:
    """The whole page."""
    every = dict(commands())
    senders = [names_of(command) for command in every.values() if "--trace" in names_of(command)]
    load = frozenset(senders[0]).intersection(*senders)
    listed = ", ".join(f"`{name}`" for name in senders[0] if name in load)
    shared = f"\n**Load options**, of every command that sends traffic: {listed}.\n"
    return HEAD + shared + "".join(section(name, command, load) for name, command in every.items())


def names_of(command: TyperCommand) -> Set[str]:
    """The first names of a command's options, in order."""
    return {each.opts[0]: None for each in command.params if is_option(each.opts)}.keys()


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Every command that does something, with its whole name."""
    yield from walk("phasewise", typer.main.get_command(app))


def walk(name: str, command: object) -> Iterator[tuple[str, TyperCommand]]:
    """The commands below this one, depth first."""
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for child in command.list_commands(context):
            yield from walk(f"{name} {child}", command.get_command(context, child))
    elif isinstance(command, TyperCommand):
        yield name, command
    else:
        raise TypeError(f"{name} is no command: {command!r}")


def section(name: str, command: TyperCommand, load: Set[str]) -> str:
    """One command: what it does, its arguments, the names of its options."""
    parameters = [each for each in styled(list(command.params)) if each.name != "help"]
    arguments = [shown_argument(each) for each in parameters if not is_option(each.opts)]
    sends = load <= names_of(command)
    options = [
        f"`{', '.join((*each.opts, *each.secondary_opts))}`"
        for each in parameters
        if is_option(each.opts) and not (sends and each.opts[0] in load)
    ]
    options += ["the load options"] if sends else []
    summary = " ".join((command.help or "").split("\n\n")[0].split())
    listed = f"\n\nOptions: {', '.join(options)}." if options else ""
    return f"\n## {' '.join((name, *arguments))}\n\n{summary}{listed}\n"


def shown_argument(parameter: Any) -> str:  # noqa: ANN401 - of typer's own click, or of click
    """An argument as the usage line of its command shows it."""
    name = (parameter.metavar or parameter.name.upper()) + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def is_option(spellings: Sequence[str]) -> bool:
    """Whether a parameter with these spellings is given by a name."""
    return spellings[0].startswith("-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

"""Groups that import a command only when it is called, because importing all takes a second, and the style of
every command's help: metavars say what a value means, and flags have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from phasewise.core.slo import parse_duration_s

RESULTS = "Results"
"""The help panel for outputs."""

SECONDS = "SECONDS"
METAVARS = {
    "KEY": "--admin-key --api-key",
    "URL": "--steps-url --embedder-url url",
    "FILE": (
        "--trace --html --timelines --save --save-evidence --output --ledger --costs --api-key-file "
        "--embedder-key-file"
    ),
    "FOLDER": "--path",
    "HOST": "--host",
    "PORT": "--port --engine-port --picker-port",
    "NAME": "--model --name --gpu --tenant --namespace --tag --embedder-model name",
    "MODEL": "model config --config",
    "TEXT": "--system",
    "TOKENS": (
        "--prompt-tokens --output-tokens --shared-prefix-tokens --cached-tokens --chunk-tokens --context "
        "--max-model-len --max-num-batched-tokens --block-size --kv-tokens"
    ),
    SECONDS: "--duration --think --timeout --window",
    "MINUTES": "--minutes",
    "PER_SECOND": "--rate",
    "SHARE": "--attainment --margin --alpha --jitter",
    "FACTOR": "--speed --slow",
    "RATIO": "--burstiness",
    "TFLOPS": "--peak-tflops --peak-8bit-tflops",
    "GB/S": "--bandwidth-gbs --link-gbs",
    "GB": "--memory-gb",
    "DOLLARS": "--price-per-hour",
    "ttft=TIME,tpot=TIME": "--slo",
    "LOADS": "--sweep",
    "POOL=N,N": "--vary",
    "N": (
        "--concurrency --requests --shared-prefixes --turns --warm-up --seed --pairs --control-pairs "
        "--max-pairs --gpus --count --limit --max-num-seqs --total-blocks --gateways --draws "
        "--most-engines"
    ),
}
"""The metavar of each option; an option means the same in every command."""

_METAVAR_OF = {name: metavar for metavar, names in METAVARS.items() for name in names.split()}


class HelpCommand(TyperCommand):
    """A command with meaningful metavars in its help."""

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click, or of click
        return styled(super().get_params(ctx))


class HelpGroup(TyperGroup):
    """A group with meaningful metavars in its help."""

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - see above
        return styled(super().get_params(ctx))


def styled(params: list[Any]) -> list[Any]:
    """The parameters as the help shows them."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.metavar is None:
            each.metavar = _METAVAR_OF.get(each.opts[0])
        if each.metavar == SECONDS and "process_value" not in vars(each):
            each.process_value = partial(_in_seconds, each.process_value)
    options = [each for each in params if each.param_type_name == "option"]
    if all(each.rich_help_panel for each in options if each.name != "help"):
        for each in options:
            each.rich_help_panel = each.rich_help_panel or (RESULTS if len(options) > 1 else None)
    return params


def _in_seconds(process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:  # noqa: ANN401 - see above
    """A value of seconds, which may be typed with a unit: 500ms, 30s, 2m or 1h."""
    has_unit = isinstance(value, str) and value[-1:].isalpha()
    return process(ctx, parse_duration_s(value) if has_unit else value)


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

"""The style of every command's help: metavars say what a value means, and flags have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup

from phasewise.core.slo import parse_duration_s

RESULT = "Results"
"""The help panel for outputs."""

SECONDS = "SECONDS"
METAVARS = {
    "KEY": ("--admin-key", "--api-key"),
    "URL": ("--steps-url", "--embedder-url", "url"),
    "FILE": ("--trace", "--html", "--timelines", "--save", "--api-key-file"),
    "FOLDER": ("--path",),
    "HOST": ("--host",),
    "PORT": ("--port", "--engine-port", "--picker-port"),
    "NAME": ("--model", "--name", "--gpu", "--tenant", "--namespace", "--tag", "name"),
    "MODEL": ("model", "config", "--config"),
    "TEXT": ("--system",),
    "TOKENS": (
        *(
            "--prompt-tokens",
            "--output-tokens",
            "--shared-prefix-tokens",
            "--cached-tokens",
            "--chunk-tokens",
        ),
        *("--context", "--max-model-len", "--max-num-batched-tokens", "--block-size", "--kv-tokens"),
    ),
    SECONDS: ("--duration", "--think", "--timeout", "--window", "--start-up"),
    "MINUTES": ("--minutes",),
    "PER_SECOND": ("--rate",),
    "SHARE": ("--attainment", "--margin", "--alpha", "--jitter"),
    "FACTOR": ("--speed", "--slow"),
    "RATIO": ("--burstiness",),
    "TFLOPS": ("--peak-tflops", "--peak-8bit-tflops"),
    "GB/S": ("--bandwidth-gbs", "--link-gbs"),
    "GB": ("--memory-gb",),
    "DOLLARS": ("--price-per-hour",),
    "ttft=TIME,tpot=TIME": ("--slo",),
    "LOADS": ("--sweep",),
    "POOL=N,N": ("--vary",),
    "N": (
        *("--concurrency", "--requests", "--shared-prefixes", "--turns", "--warm-up", "--seed", "--pairs"),
        *(
            "--control-pairs",
            "--max-pairs",
            "--cores",
            "--gpus",
            "--count",
            "--limit",
            "--max-num-seqs",
            "--total-blocks",
            "--gateways",
            "--draws",
            "--min-engines",
            "--max-engines",
            "--most-engines",
        ),
    ),
}
"""The metavar of each option; an option means the same in every command."""

_METAVAR_OF = {name: metavar for metavar, names in METAVARS.items() for name in names}


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
            each.rich_help_panel = each.rich_help_panel or (RESULT if len(options) > 1 else None)
    return params


def _in_seconds(process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:  # noqa: ANN401 - see above
    """A value of seconds, which may be typed with a unit: 500ms, 30s, 2m or 1h."""
    has_unit = isinstance(value, str) and value[-1:].isalpha()
    return process(ctx, parse_duration_s(value) if has_unit else value)

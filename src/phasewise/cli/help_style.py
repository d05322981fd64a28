"""The style of every command's help: metavars say what a value means, and flags have none."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

RESULT = "Results"
"""The help panel for outputs."""

METAVARS = {
    "KEY": ("--admin-key", "--api-key"),
    "URL": ("--steps-url", "--embedder-url", "url"),
    "FILE": ("--trace", "--html", "--markdown", "--timelines", "--save", "--recorded", "--api-key-file"),
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
    "SECONDS": ("--duration", "--think", "--timeout", "--window", "--start-up"),
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
    "RULE": ("--scale",),
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
    options = [each for each in params if each.param_type_name == "option"]
    if all(each.rich_help_panel for each in options if each.name != "help"):
        for each in options:
            each.rich_help_panel = each.rich_help_panel or (RESULT if len(options) > 1 else None)
    return params

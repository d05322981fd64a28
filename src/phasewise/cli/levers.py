"""`phasewise levers`: which lever helps which phase, and why, modelled on your model."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from phasewise.api.model_sheet import model_sheet
from phasewise.cli.options import AsJson
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.planning.lever_guide import MODELLED_ON, guide_rows, typical_deployment
from phasewise.report.console import out
from phasewise.report.modelled import guide_facts, render_guide

USUAL_GPU = "H100"


def levers(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A config.json, a folder, a known name or a Hugging Face id. (default: an 8B model)",
            show_default=False,
        ),
    ] = None,
    *,
    gpu: Annotated[str, typer.Option(help=f"The device to model: {', '.join(ACCELERATORS)}.")] = USUAL_GPU,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs per engine.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Show which lever helps which phase and why, modelled on your model. No engine is needed.

    To measure a lever, compare a fleet with it off and on: `phasewise compare FLEET --set LEVER=VALUE`.
    """
    deployment, name = _deployment(model, gpu, gpus)
    rows = guide_rows(deployment)
    if as_json:
        typer.echo(orjson.dumps(guide_facts(rows, name), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_guide(rows, name))


def _deployment(model: str | None, gpu: str, gpus: int) -> tuple[Deployment, str]:
    """The model on the device, and both in words."""
    if model is None and (gpu, gpus) == (USUAL_GPU, 1):
        return typical_deployment(), MODELLED_ON
    if model is None:
        raise UsageError("--gpu and --gpus need a model", hint="name one: `phasewise levers MODEL`")
    asked = model_sheet(model, gpu=gpu, gpus=gpus).asked
    fits = "" if asked.deployment.fits else ", whose memory is too small for it: try more --gpus"
    return asked.deployment, f"{asked.name} on {gpus} x {gpu}{fits}"

"""`phasewise model sheet` and `phasewise levers`: what a model needs on a device, and which lever helps."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Annotated, Any

import typer

from phasewise.api.load_options import takes
from phasewise.api.model_sheet import CUSTOM, model_sheet
from phasewise.cli.options import AsJson, SloText, in_panel, print_json
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS, ASSUMPTION_MEANINGS
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.precision import KvDtype, WeightScheme
from phasewise.planning.lever_guide import MODELLED_ON, guide_rows, typical_deployment
from phasewise.report.console import out
from phasewise.report.modelled import guide_facts, render_guide, render_sheet

device_option = in_panel("Device")
traffic_option = in_panel("Traffic")
serving_option = in_panel("Serving")

OPTIONS: Mapping[str, Any] = {
    "config": Annotated[
        str,
        typer.Argument(
            help="A config.json, a folder with one, a known model, or the hub id of a downloaded model."
        ),
    ],
    "gpu": Annotated[str, device_option(help=f"{', '.join(ACCELERATORS)}, or {CUSTOM}.")],
    "gpus": Annotated[
        int, device_option(min=1, help="Number of devices that share every layer (tensor parallel).")
    ],
    "peak_tflops": Annotated[float | None, device_option(help="Custom device: dense 16-bit TFLOP/s.")],
    "peak_8bit_tflops": Annotated[
        float | None,
        device_option(help="Custom device: dense int8 and fp8 TFLOP/s. (default: not supported)"),
    ],
    "bandwidth_gbs": Annotated[float | None, device_option(help="Custom device: memory bandwidth, GB/s.")],
    "memory_gb": Annotated[float | None, device_option(help="Custom device: memory size, GB.")],
    "link_gbs": Annotated[
        float | None, device_option(help="Custom device: bandwidth to its neighbours, GB/s one way.")
    ],
    "price_per_hour": Annotated[
        float | None, device_option(min=0.0, help="Price of one device per hour, in dollars.")
    ],
    "assume": Annotated[
        list[str] | None,
        device_option(metavar="NAME=VALUE", help=f"Replace an assumption: {', '.join(ASSUMPTION_MEANINGS)}."),
    ],
    "weights": Annotated[
        WeightScheme | None, serving_option(help="Precision of the weights. (default: the checkpoint's)")
    ],
    "kv_dtype": Annotated[KvDtype, serving_option(help="Data type of the KV cache.")],
    "chunk_tokens": Annotated[
        int | None,
        serving_option(min=1, help="Largest number of tokens in a step. (default: vLLM's on this device)"),
    ],
    "max_num_seqs": Annotated[
        int | None,
        serving_option(
            min=1, help="Largest number of requests that run at once. (default: vLLM's on this device)"
        ),
    ],
    "prompt_tokens": Annotated[int, traffic_option(min=1, help="Tokens per prompt.")],
    "cached_tokens": Annotated[
        int, traffic_option(min=0, help="Prompt tokens that are in the prefix cache.")
    ],
    "output_tokens": Annotated[int, traffic_option(min=2, help="Tokens per answer.")],
    "context": Annotated[
        int | None,
        traffic_option(
            min=1, help="Context length of the decode table. (default: the prompt plus half the answer)"
        ),
    ],
    "rate": Annotated[
        float | None, traffic_option(help="Calculate the replicas for this many requests per second.")
    ],
    "slo": SloText,
}
"""The parameters of `model_sheet` as arguments and options."""


@takes([each.replace(annotation=OPTIONS[name]) for name, each in signature(model_sheet).parameters.items()])
def sheet(*, as_json: AsJson = False, **asked: Any) -> None:  # noqa: ANN401 - what `model_sheet` takes
    """Calculate what a model needs on a device: KV cache, TTFT, TPOT, bottlenecks, capacity, price."""
    made = model_sheet(**asked | {"assume": _assumed(asked["assume"] or [])})
    if as_json:
        typer.echo(made.to_json())
    else:
        out.print(render_sheet(made))


def _assumed(pairs: list[str]) -> dict[str, float]:
    given = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise UsageError(
                f"--assume {pair} is not NAME=VALUE with a number", hint="for example --assume compute=0.6"
            ) from None
    return given


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
        print_json(guide_facts(rows, name), indented=True)
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

"""`phasewise model sheet`: what a model needs on a device, phase by phase, with every formula."""

from __future__ import annotations

from typing import Annotated

import typer

from phasewise.api.model_sheet import CUSTOM, model_sheet
from phasewise.cli.options import AsJson, SloText
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS, ASSUMPTION_MEANINGS
from phasewise.costs.roofline.precision import KvDtype, WeightScheme
from phasewise.report.console import out
from phasewise.report.modelled import render_sheet


def sheet(
    config: Config,
    *,
    gpu: Gpu = "H100",
    gpus: Gpus = 1,
    peak_tflops: PeakTflops = None,
    peak_8bit_tflops: Peak8BitTflops = None,
    bandwidth_gbs: BandwidthGbs = None,
    memory_gb: MemoryGb = None,
    link_gbs: LinkGbs = None,
    price_per_hour: PricePerHour = None,
    assume: Assume = None,
    weights: Weights = None,
    kv_dtype: KvNumbers = KvDtype.SIXTEEN_BIT,
    chunk_tokens: ChunkTokens = None,
    max_num_seqs: MaxNumSeqs = None,
    prompt_tokens: PromptTokens = 2000,
    cached_tokens: CachedTokens = 0,
    output_tokens: OutputTokens = 300,
    context: Context = None,
    rate: Rate = None,
    slo: SloText = "",
    as_json: AsJson = False,
) -> None:
    """Calculate what a model needs on a device: KV cache, TTFT, TPOT, bottlenecks, capacity, price."""
    made = model_sheet(
        config,
        gpu=gpu,
        gpus=gpus,
        peak_tflops=peak_tflops,
        peak_8bit_tflops=peak_8bit_tflops,
        bandwidth_gbs=bandwidth_gbs,
        memory_gb=memory_gb,
        link_gbs=link_gbs,
        price_per_hour=price_per_hour,
        assume=_assumed(assume or []),
        weights=weights,
        kv_dtype=kv_dtype,
        chunk_tokens=chunk_tokens,
        max_num_seqs=max_num_seqs,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        context=context,
        rate=rate,
        slo=slo,
    )
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


# --- The options of `phasewise model sheet`.

DEVICE = "Device"
TRAFFIC = "Traffic"
HOW = "Serving"

Config = Annotated[
    str,
    typer.Argument(
        help="A config.json, a folder with one, a known model, or the hub id of a downloaded model."
    ),
]
Gpu = Annotated[str, typer.Option(help=f"{', '.join(ACCELERATORS)}, or {CUSTOM}.", rich_help_panel=DEVICE)]
Gpus = Annotated[
    int,
    typer.Option(
        min=1, help="Number of devices that share every layer (tensor parallel).", rich_help_panel=DEVICE
    ),
]
PeakTflops = Annotated[
    float | None,
    typer.Option(help="Custom device: dense 16-bit TFLOP/s.", rich_help_panel=DEVICE),
]
Peak8BitTflops = Annotated[
    float | None,
    typer.Option(
        "--peak-8bit-tflops",
        help="Custom device: dense int8 and fp8 TFLOP/s. (default: not supported)",
        rich_help_panel=DEVICE,
    ),
]
BandwidthGbs = Annotated[
    float | None, typer.Option(help="Custom device: memory bandwidth, GB/s.", rich_help_panel=DEVICE)
]
MemoryGb = Annotated[
    float | None, typer.Option(help="Custom device: memory size, GB.", rich_help_panel=DEVICE)
]
LinkGbs = Annotated[
    float | None,
    typer.Option(help="Custom device: bandwidth to its neighbours, GB/s one way.", rich_help_panel=DEVICE),
]
PricePerHour = Annotated[
    float | None,
    typer.Option(min=0.0, help="Price of one device per hour, in dollars.", rich_help_panel=DEVICE),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help=f"Replace an assumption: {', '.join(ASSUMPTION_MEANINGS)}.",
        rich_help_panel=DEVICE,
    ),
]
Weights = Annotated[
    WeightScheme | None,
    typer.Option(help="Precision of the weights. (default: the checkpoint's)", rich_help_panel=HOW),
]
KvNumbers = Annotated[KvDtype, typer.Option(help="Data type of the KV cache.", rich_help_panel=HOW)]
ChunkTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Largest number of tokens in a step. (default: vLLM's on this device)",
        rich_help_panel=HOW,
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Largest number of requests that run at once. (default: vLLM's on this device)",
        rich_help_panel=HOW,
    ),
]
PromptTokens = Annotated[int, typer.Option(min=1, help="Tokens per prompt.", rich_help_panel=TRAFFIC)]
CachedTokens = Annotated[
    int, typer.Option(min=0, help="Prompt tokens that are in the prefix cache.", rich_help_panel=TRAFFIC)
]
OutputTokens = Annotated[int, typer.Option(min=2, help="Tokens per answer.", rich_help_panel=TRAFFIC)]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Context length of the decode table. (default: the prompt plus half the answer)",
        rich_help_panel=TRAFFIC,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Calculate the replicas for this many requests per second.", rich_help_panel=TRAFFIC),
]

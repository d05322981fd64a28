"""`phasewise model sheet`: what a model needs on a device, phase by phase, with every formula."""

from __future__ import annotations

from typing import Annotated

import typer

from phasewise.api.model_sheet import CUSTOM, model_sheet
from phasewise.cli.options import AsJson, SloText, in_panel
from phasewise.core.errors import UsageError
from phasewise.costs.roofline.accelerators import ACCELERATORS, ASSUMPTION_MEANINGS
from phasewise.costs.roofline.precision import KvDtype, WeightScheme
from phasewise.report.console import out
from phasewise.report.model_sheet_view import render


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
        out.print(render(made))


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

device_option = in_panel("Device")
traffic_option = in_panel("Traffic")
serving_option = in_panel("Serving")

Config = Annotated[
    str,
    typer.Argument(
        help="A config.json, a folder with one, a known model, or the hub id of a downloaded model."
    ),
]
Gpu = Annotated[str, device_option(help=f"{', '.join(ACCELERATORS)}, or {CUSTOM}.")]
Gpus = Annotated[
    int, device_option(min=1, help="Number of devices that share every layer (tensor parallel).")
]
PeakTflops = Annotated[float | None, device_option(help="Custom device: dense 16-bit TFLOP/s.")]
Peak8BitTflops = Annotated[
    float | None,
    device_option(
        "--peak-8bit-tflops", help="Custom device: dense int8 and fp8 TFLOP/s. (default: not supported)"
    ),
]
BandwidthGbs = Annotated[float | None, device_option(help="Custom device: memory bandwidth, GB/s.")]
MemoryGb = Annotated[float | None, device_option(help="Custom device: memory size, GB.")]
LinkGbs = Annotated[
    float | None, device_option(help="Custom device: bandwidth to its neighbours, GB/s one way.")
]
PricePerHour = Annotated[
    float | None, device_option(min=0.0, help="Price of one device per hour, in dollars.")
]
Assume = Annotated[
    list[str] | None,
    device_option(metavar="NAME=VALUE", help=f"Replace an assumption: {', '.join(ASSUMPTION_MEANINGS)}."),
]
Weights = Annotated[
    WeightScheme | None, serving_option(help="Precision of the weights. (default: the checkpoint's)")
]
KvNumbers = Annotated[KvDtype, serving_option(help="Data type of the KV cache.")]
ChunkTokens = Annotated[
    int | None,
    serving_option(min=1, help="Largest number of tokens in a step. (default: vLLM's on this device)"),
]
MaxNumSeqs = Annotated[
    int | None,
    serving_option(
        min=1, help="Largest number of requests that run at once. (default: vLLM's on this device)"
    ),
]
PromptTokens = Annotated[int, traffic_option(min=1, help="Tokens per prompt.")]
CachedTokens = Annotated[int, traffic_option(min=0, help="Prompt tokens that are in the prefix cache.")]
OutputTokens = Annotated[int, traffic_option(min=2, help="Tokens per answer.")]
Context = Annotated[
    int | None,
    traffic_option(
        min=1, help="Context length of the decode table. (default: the prompt plus half the answer)"
    ),
]
Rate = Annotated[
    float | None, traffic_option(help="Calculate the replicas for this many requests per second.")
]

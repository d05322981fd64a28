"""The options of `phasewise model sheet`; what is made of them is model_sheet.py's business."""

from __future__ import annotations

from typing import Annotated

import typer

from phasewise.cli.model_sheet_device import CUSTOM
from phasewise.costs.accelerators import ACCELERATORS, ASSUMPTION_MEANINGS
from phasewise.costs.precision import KvDtype, WeightScheme

DEVICE = "The device"
TRAFFIC = "The traffic"
HOW = "How the model is served"

Config = Annotated[
    str, typer.Argument(help="A config.json, a folder with one, a known model, or a hub id kept here.")
]
Gpu = Annotated[str, typer.Option(help=f"{', '.join(ACCELERATORS)}, or {CUSTOM}.", rich_help_panel=DEVICE)]
Gpus = Annotated[int, typer.Option(min=1, help="Devices that share every layer.", rich_help_panel=DEVICE)]
PeakTflops = Annotated[
    float | None,
    typer.Option(help="Of a custom device: 16 bit arithmetic, dense.", rich_help_panel=DEVICE),
]
Peak8BitTflops = Annotated[
    float | None,
    typer.Option(
        "--peak-8bit-tflops",
        help="Of a custom device: int8 and fp8 arithmetic, dense. (default: no units for it)",
        rich_help_panel=DEVICE,
    ),
]
BandwidthGbs = Annotated[
    float | None, typer.Option(help="Of a custom device: memory, GB/s.", rich_help_panel=DEVICE)
]
MemoryGb = Annotated[
    float | None, typer.Option(help="Of a custom device: memory, GB.", rich_help_panel=DEVICE)
]
LinkGbs = Annotated[
    float | None,
    typer.Option(help="Of a custom device: to its neighbours, GB/s one way.", rich_help_panel=DEVICE),
]
PricePerHour = Annotated[
    float | None, typer.Option(min=0.0, help="Of one device, in dollars.", rich_help_panel=DEVICE)
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
    typer.Option(help="Weights in another precision than the checkpoint's.", rich_help_panel=HOW),
]
KvNumbers = Annotated[KvDtype, typer.Option(help="Numbers in the KV cache.", rich_help_panel=HOW)]
ChunkTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Prompt tokens in a step, at most. (default: vLLM's on this device)",
        rich_help_panel=HOW,
    ),
]
MaxRunning = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests that run at once, at most. (default: vLLM's on this device)",
        rich_help_panel=HOW,
    ),
]
PromptTokens = Annotated[int, typer.Option(min=1, help="Tokens of a prompt.", rich_help_panel=TRAFFIC)]
CachedTokens = Annotated[
    int, typer.Option(min=0, help="Of these, in the prefix cache.", rich_help_panel=TRAFFIC)
]
OutputTokens = Annotated[int, typer.Option(min=2, help="Tokens of an answer.", rich_help_panel=TRAFFIC)]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Context of the decode table. (default: the prompt and half the answer)",
        rich_help_panel=TRAFFIC,
    ),
]
Rate = Annotated[
    float | None, typer.Option(help="Requests per second to find replicas for.", rich_help_panel=TRAFFIC)
]

"""`phasewise model sheet`: what a model asks of a device, phase by phase, with every formula filled in.

It reads options and the configuration; the figures are costs/sheet's, their layout model_sheet_view.py's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from phasewise.cli.console import out
from phasewise.cli.model_sheet_view import render
from phasewise.cli.workload_options import AsJson, SloText
from phasewise.config import phasewise_home
from phasewise.costs.accelerators import ACCELERATORS, ASSUMED, ASSUMPTION_MEANINGS, Accelerator
from phasewise.costs.capacity import Traffic
from phasewise.costs.deployment import Deployment
from phasewise.costs.model_config import architecture_of
from phasewise.costs.precision import KV_BYTES, WEIGHT_SCHEMES, Arithmetic, KvDtype, WeightScheme
from phasewise.costs.sheet.build import sheet_of
from phasewise.costs.sheet.facts import Asked
from phasewise.errors import ConfigError
from phasewise.fleet.model_config_file import read_model_config
from phasewise.model.slo import DEFAULT_SLO, parse_slo

CUSTOM = "custom"
DEVICE = "The device"
TRAFFIC = "The traffic"
HOW = "How the model is served"


def sheet(
    config: Annotated[
        str, typer.Argument(help="A config.json, a folder with one, a known model, or a hub id kept here.")
    ],
    *,
    gpu: Annotated[
        str, typer.Option(help=f"{', '.join(ACCELERATORS)}, or {CUSTOM}.", rich_help_panel=DEVICE)
    ] = "H100",
    gpus: Annotated[
        int, typer.Option(min=1, help="Devices that share every layer.", rich_help_panel=DEVICE)
    ] = 1,
    peak_tflops: Annotated[
        float | None,
        typer.Option(help="Of a custom device: 16 bit arithmetic, dense.", rich_help_panel=DEVICE),
    ] = None,
    bandwidth_gbs: Annotated[
        float | None, typer.Option(help="Of a custom device: memory, GB/s.", rich_help_panel=DEVICE)
    ] = None,
    memory_gb: Annotated[
        float | None, typer.Option(help="Of a custom device: memory, GB.", rich_help_panel=DEVICE)
    ] = None,
    link_gbs: Annotated[
        float | None,
        typer.Option(help="Of a custom device: to its neighbours, GB/s one way.", rich_help_panel=DEVICE),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Of one device, in dollars.", rich_help_panel=DEVICE)
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help=f"Replace an assumption: {', '.join(ASSUMPTION_MEANINGS)}.",
            rich_help_panel=DEVICE,
        ),
    ] = None,
    weights: Annotated[
        WeightScheme | None,
        typer.Option(help="Weights in another precision than the checkpoint's.", rich_help_panel=HOW),
    ] = None,
    kv_dtype: Annotated[
        KvDtype, typer.Option(help="Numbers in the KV cache.", rich_help_panel=HOW)
    ] = KvDtype.SIXTEEN_BIT,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Prompt tokens in a step, at most.", rich_help_panel=HOW)
    ] = 8192,
    max_running: Annotated[
        int, typer.Option(min=1, help="Requests that decode at once, at most.", rich_help_panel=HOW)
    ] = 1024,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt.", rich_help_panel=TRAFFIC)
    ] = 2000,
    cached_tokens: Annotated[
        int, typer.Option(min=0, help="Of these, in the prefix cache.", rich_help_panel=TRAFFIC)
    ] = 0,
    output_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens of an answer.", rich_help_panel=TRAFFIC)
    ] = 300,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Context of the decode table. (default: the prompt and half the answer)",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second to find replicas for.", rich_help_panel=TRAFFIC),
    ] = None,
    slo: SloText = "",
    as_json: AsJson = False,
) -> None:
    """Work out what a model asks of a device: KV cache, TTFT, TPOT, what binds them, capacity and price."""
    found = read_model_config(config, phasewise_home(os.environ), os.environ)
    custom = (peak_tflops, bandwidth_gbs, memory_gb, link_gbs)
    deployment = Deployment(
        architecture=architecture_of(found, WEIGHT_SCHEMES[weights] if weights else None),
        accelerator=_accelerator(gpu, gpus, custom, price_per_hour),
        gpus=gpus,
        kv_element_bytes=KV_BYTES[kv_dtype],
        chunk_tokens=chunk_tokens,
        assumptions=ASSUMED.with_values(_assumed(assume or [])),
    )
    traffic = _traffic(prompt_tokens, output_tokens, cached_tokens)
    if rate is not None and rate <= 0:
        raise ConfigError(f"--rate is {rate:g}", hint="it has to be above 0")
    made = sheet_of(
        Asked(
            name=_display_name(config),
            gpu=gpu,
            deployment=deployment,
            traffic=traffic,
            context_tokens=context or traffic.mean_context_tokens,
            slo=parse_slo(slo, DEFAULT_SLO),
            max_running=max_running,
            rate=rate,
        )
    )
    if as_json:
        typer.echo(orjson.dumps(made.to_dict(), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render(made))


def _display_name(config: str) -> str:
    path = Path(config)
    named = path.parent if path.name == "config.json" else path
    return named.absolute().name.removesuffix(".json")


def _traffic(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> Traffic:
    if cached_tokens >= prompt_tokens:
        raise ConfigError(
            f"--cached-tokens {cached_tokens} leave nothing of --prompt-tokens {prompt_tokens}",
            hint="an engine computes the last token of a prompt even when all of it is cached",
        )
    return Traffic(prompt_tokens, output_tokens, cached_tokens)


def _accelerator(
    gpu: str, gpus: int, custom: tuple[float | None, ...], price_per_hour: float | None
) -> Accelerator:
    if gpu == CUSTOM:
        return _custom_accelerator(gpus, custom, price_per_hour or 0.0)
    if gpu not in ACCELERATORS:
        raise ConfigError(
            f"no device is known by the name {gpu!r}",
            hint=f"known: {', '.join(ACCELERATORS)}; any other is --gpu {CUSTOM} with its figures",
        )
    if any(figure is not None for figure in custom):
        raise ConfigError(f"{gpu} has figures of its own", hint=f"give yours with --gpu {CUSTOM}")
    known = ACCELERATORS[gpu]
    if price_per_hour is None:
        return known
    return replace(
        known, price_per_hour=price_per_hour, sources={**known.sources, "price_per_hour": "--price-per-hour"}
    )


def _custom_accelerator(gpus: int, custom: tuple[float | None, ...], price_per_hour: float) -> Accelerator:
    peak_tflops, bandwidth_gbs, memory_gb, link_gbs = custom
    if (
        not peak_tflops
        or not bandwidth_gbs
        or not memory_gb
        or min(peak_tflops, bandwidth_gbs, memory_gb) < 0
    ):
        raise ConfigError(
            "a custom device needs figures above 0",
            hint="give --peak-tflops, --bandwidth-gbs and --memory-gb",
        )
    if gpus > 1 and not link_gbs:
        raise ConfigError("several custom devices need a link", hint="give --link-gbs")
    given = ("peak_flops", "bandwidth_bytes_per_s", "memory_bytes", "link_bytes_per_s", "price_per_hour")
    return Accelerator(
        name=CUSTOM,
        peak_flops={Arithmetic.SIXTEEN_BIT: peak_tflops * 1e12},
        bandwidth_bytes_per_s=bandwidth_gbs * 1e9,
        memory_bytes=memory_gb * 1e9,
        link_bytes_per_s=(link_gbs or 0.0) * 1e9,
        price_per_hour=price_per_hour,
        sources=dict.fromkeys(given, "as given"),
    )


def _assumed(pairs: list[str]) -> dict[str, float]:
    given = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f"--assume {pair} is not NAME=VALUE with a number", hint="for example --assume compute=0.6"
            ) from None
    return given

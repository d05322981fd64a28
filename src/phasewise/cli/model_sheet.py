"""`phasewise model sheet`: what a model asks of a device, phase by phase, with every formula filled in.

It reads the configuration; the figures are costs/sheet's, their layout model_sheet_view.py's.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import typer

from phasewise.cli import model_sheet_options as options
from phasewise.cli.console import out
from phasewise.cli.model_sheet_device import OwnFigures, above_zero, accelerator_of
from phasewise.cli.model_sheet_view import render
from phasewise.cli.workload_options import AsJson, SloText
from phasewise.config import phasewise_home
from phasewise.costs.accelerators import ASSUMED
from phasewise.costs.architecture import Architecture
from phasewise.costs.capacity import Traffic
from phasewise.costs.deployment import Deployment
from phasewise.costs.model_config import architecture_of
from phasewise.costs.precision import KV_BYTES, WEIGHT_SCHEMES, KvDtype, WeightScheme
from phasewise.costs.sheet.build import sheet_of
from phasewise.costs.sheet.facts import Asked, Sheet
from phasewise.errors import ConfigError
from phasewise.fleet.model_config_file import read_model_config
from phasewise.model.slo import DEFAULT_SLO, parse_slo


def sheet(
    config: options.Config,
    *,
    gpu: options.Gpu = "H100",
    gpus: options.Gpus = 1,
    peak_tflops: options.PeakTflops = None,
    peak_8bit_tflops: options.Peak8BitTflops = None,
    bandwidth_gbs: options.BandwidthGbs = None,
    memory_gb: options.MemoryGb = None,
    link_gbs: options.LinkGbs = None,
    price_per_hour: options.PricePerHour = None,
    assume: options.Assume = None,
    weights: options.Weights = None,
    kv_dtype: options.KvNumbers = KvDtype.SIXTEEN_BIT,
    chunk_tokens: options.ChunkTokens = None,
    max_running: options.MaxRunning = None,
    prompt_tokens: options.PromptTokens = 2000,
    cached_tokens: options.CachedTokens = 0,
    output_tokens: options.OutputTokens = 300,
    context: options.Context = None,
    rate: options.Rate = None,
    slo: SloText = "",
    as_json: AsJson = False,
) -> None:
    """Work out what a model asks of a device: KV cache, TTFT, TPOT, what binds them, capacity and price."""
    if rate is not None:
        above_zero("--rate", rate)
    own = OwnFigures(peak_tflops, bandwidth_gbs, memory_gb, peak_8bit_tflops, link_gbs)
    accelerator = accelerator_of(gpu, gpus, own, price_per_hour)
    traffic = _traffic(prompt_tokens, output_tokens, cached_tokens)
    asked = Asked(
        name=_display_name(config),
        gpu=gpu,
        deployment=Deployment(
            architecture=_architecture(config, weights),
            accelerator=accelerator,
            gpus=gpus,
            kv_element_bytes=KV_BYTES[kv_dtype],
            chunk_tokens=chunk_tokens,
            assumptions=ASSUMED.with_values(_assumed(assume or [])),
        ),
        traffic=traffic,
        context_tokens=context or traffic.mean_context_tokens,
        slo=parse_slo(slo, DEFAULT_SLO),
        max_running=max_running or accelerator.max_running,
        rate=rate,
    )
    _show(sheet_of(asked), as_json=as_json)


def _show(made: Sheet, *, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(made.to_dict(), option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render(made))


def _architecture(config: str, weights: WeightScheme | None) -> Architecture:
    found = read_model_config(config, phasewise_home(os.environ), os.environ)
    return architecture_of(found, WEIGHT_SCHEMES[weights] if weights else None)


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

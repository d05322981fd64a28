"""What a model needs on a device, phase by phase, with every formula."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from phasewise.api.call import check_range, chosen
from phasewise.core.errors import UsageError
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from phasewise.costs.roofline.accelerators import ACCELERATORS, ASSUMED, Accelerator, served_by_default
from phasewise.costs.roofline.architecture import Architecture
from phasewise.costs.roofline.capacity import UniformTraffic
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import KV_BYTES, WEIGHT_SCHEMES, Arithmetic, KvDtype, WeightScheme
from phasewise.costs.sheet.build import sheet_of
from phasewise.costs.sheet.facts import Sheet, SheetSubject
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.engines.known_models import read_model_config

CUSTOM = "custom"
"""The device that is described by options instead of its name."""


def model_sheet(
    config: str,
    *,
    gpu: str = "H100",
    gpus: int = 1,
    peak_tflops: float | None = None,
    peak_8bit_tflops: float | None = None,
    bandwidth_gbs: float | None = None,
    memory_gb: float | None = None,
    link_gbs: float | None = None,
    price_per_hour: float | None = None,
    assume: Mapping[str, float] | None = None,
    weights: str | None = None,
    kv_dtype: str = KvDtype.SIXTEEN_BIT,
    chunk_tokens: int | None = None,
    max_num_seqs: int | None = None,
    prompt_tokens: int = 2000,
    cached_tokens: int = 0,
    output_tokens: int = 300,
    context: int | None = None,
    rate: float | None = None,
    slo: str = "",
) -> Sheet:
    """Calculate what a model needs on a device: KV cache, TTFT, TPOT, bottlenecks, capacity, price.

    Works like `phasewise model sheet CONFIG`, with the same options; `assume` maps names to values. Raises
    PhasewiseError.
    """
    for option, count, least in (
        ("--gpus", gpus, 1),
        ("--chunk-tokens", chunk_tokens, 1),
        ("--max-num-seqs", max_num_seqs, 1),
        ("--prompt-tokens", prompt_tokens, 1),
        ("--cached-tokens", cached_tokens, 0),
        ("--output-tokens", output_tokens, 2),
        ("--context", context, 1),
        ("--price-per-hour", price_per_hour, 0),
    ):
        check_range(option, count, least)
    if rate is not None:
        _check_above_zero("--rate", rate)
    figures = {
        "--peak-tflops": peak_tflops,
        "--bandwidth-gbs": bandwidth_gbs,
        "--memory-gb": memory_gb,
        "--peak-8bit-tflops": peak_8bit_tflops,
        "--link-gbs": link_gbs,
    }
    own = {option: figure for option, figure in figures.items() if figure is not None}
    accelerator = _accelerator(gpu, gpus, own, price_per_hour)
    traffic = _traffic(prompt_tokens, output_tokens, cached_tokens)
    scheme = None if weights is None else chosen("--weights", weights, WeightScheme)
    asked = SheetSubject(
        name=_display_name(config),
        gpu=gpu,
        deployment=Deployment(
            architecture=_architecture(config, scheme),
            accelerator=accelerator,
            gpus=gpus,
            kv_element_bytes=KV_BYTES[chosen("--kv-dtype", kv_dtype, KvDtype)],
            chunk_tokens=chunk_tokens,
            assumptions=ASSUMED.with_values(dict(assume or {})),
        ),
        traffic=traffic,
        context_tokens=context or traffic.mean_context_tokens,
        slo=parse_slo(slo, DEFAULT_SLO),
        max_num_seqs=max_num_seqs or accelerator.max_num_seqs,
        rate=rate,
    )
    return sheet_of(asked)


def _architecture(config: str, weights: WeightScheme | None) -> Architecture:
    found = read_model_config(config, phasewise_home(os.environ), os.environ)
    return architecture_of(found, WEIGHT_SCHEMES[weights] if weights else None)


def _display_name(config: str) -> str:
    path = Path(config)
    named = path.parent if path.name == "config.json" else path
    return named.absolute().name.removesuffix(".json")


def _traffic(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> UniformTraffic:
    if cached_tokens >= prompt_tokens:
        raise UsageError(
            f"--cached-tokens {cached_tokens} has to be less than --prompt-tokens {prompt_tokens}",
            hint="an engine always computes the last token of a prompt",
        )
    return UniformTraffic(prompt_tokens, output_tokens, cached_tokens)


def _accelerator(gpu: str, gpus: int, own: Mapping[str, float], price_per_hour: float | None) -> Accelerator:
    """The device by its name, or by figures of its own, which are named like their options."""
    if price_per_hour:
        _check_above_zero("--price-per-hour", price_per_hour)
    if gpu == CUSTOM:
        return _custom_accelerator(gpus, own, price_per_hour or 0.0)
    if gpu not in ACCELERATORS:
        raise UsageError(
            f"unknown device {gpu!r}",
            hint=f"known: {', '.join(ACCELERATORS)}; describe any other with --gpu {CUSTOM} and its figures",
        )
    if own:
        raise UsageError(
            f"{gpu} is a known device, whose figures are built in",
            hint=f"use --gpu {CUSTOM} to give your own",
        )
    known = ACCELERATORS[gpu]
    if price_per_hour is None:
        return known
    return replace(
        known, price_per_hour=price_per_hour, sources={**known.sources, "price_per_hour": "--price-per-hour"}
    )


def _check_above_zero(option: str, value: float) -> None:
    """UsageError for values such as nan or 0."""
    if not isfinite(value) or value <= 0:
        raise UsageError(f"{option} is {value:g}", hint="give a finite number above 0")


def _custom_accelerator(gpus: int, own: Mapping[str, float], price_per_hour: float) -> Accelerator:
    for option, figure in own.items():
        _check_above_zero(option, figure)
    if not own.keys() >= {"--peak-tflops", "--bandwidth-gbs", "--memory-gb"}:
        raise UsageError(
            "a custom device needs its figures",
            hint="give --peak-tflops, --bandwidth-gbs and --memory-gb",
        )
    if gpus > 1 and "--link-gbs" not in own:
        raise UsageError(
            "several custom devices need --link-gbs",
            hint="give the bandwidth between two devices in GB/s, one way",
        )
    peaks = {Arithmetic.SIXTEEN_BIT: own["--peak-tflops"] * 1e12}
    if (peak_8bit_tflops := own.get("--peak-8bit-tflops")) is not None:
        peaks |= dict.fromkeys((Arithmetic.INT8, Arithmetic.FP8), peak_8bit_tflops * 1e12)
    memory_bytes = own["--memory-gb"] * 1e9
    chunk_tokens, max_num_seqs = served_by_default(memory_bytes)
    given = ("peak_flops", "bandwidth_bytes_per_s", "memory_bytes", "link_bytes_per_s", "price_per_hour")
    return Accelerator(
        name=CUSTOM,
        peak_flops=peaks,
        bandwidth_bytes_per_s=own["--bandwidth-gbs"] * 1e9,
        memory_bytes=memory_bytes,
        link_bytes_per_s=own.get("--link-gbs", 0.0) * 1e9,
        price_per_hour=price_per_hour,
        chunk_tokens=chunk_tokens,
        max_num_seqs=max_num_seqs,
        sources=dict.fromkeys(given, "as given"),
    )

"""The device of a model sheet: one that is known, or one of the user's own figures.

What known devices can do is costs/accelerators.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite

from phasewise.costs.accelerators import ACCELERATORS, Accelerator, served_by_default
from phasewise.costs.precision import Arithmetic
from phasewise.errors import ConfigError

CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """What a user says of a device; the names are those of the options."""

    peak_tflops: float | None = None
    bandwidth_gbs: float | None = None
    memory_gb: float | None = None
    peak_8bit_tflops: float | None = None
    link_gbs: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """Those that were given, by option."""
        named = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        return {option: figure for option, figure in named.items() if figure is not None}


def accelerator_of(gpu: str, gpus: int, own: OwnFigures, price_per_hour: float | None) -> Accelerator:
    """The device by its name, or by its figures."""
    if price_per_hour:
        above_zero("--price-per-hour", price_per_hour)
    if gpu == CUSTOM:
        return _custom_accelerator(gpus, own, price_per_hour or 0.0)
    if gpu not in ACCELERATORS:
        raise ConfigError(
            f"no device is known by the name {gpu!r}",
            hint=f"known: {', '.join(ACCELERATORS)}; any other is --gpu {CUSTOM} with its figures",
        )
    if own.given:
        raise ConfigError(f"{gpu} has figures of its own", hint=f"give yours with --gpu {CUSTOM}")
    known = ACCELERATORS[gpu]
    if price_per_hour is None:
        return known
    return replace(
        known, price_per_hour=price_per_hour, sources={**known.sources, "price_per_hour": "--price-per-hour"}
    )


def above_zero(option: str, value: float) -> None:
    """Refuse what no quantity can be, such as nan."""
    if not isfinite(value) or value <= 0:
        raise ConfigError(f"{option} is {value:g}", hint="it has to be a finite number above 0")


def _custom_accelerator(gpus: int, own: OwnFigures, price_per_hour: float) -> Accelerator:
    for option, figure in own.given.items():
        above_zero(option, figure)
    if own.peak_tflops is None or own.bandwidth_gbs is None or own.memory_gb is None:
        raise ConfigError(
            "a custom device needs figures of its own",
            hint="give --peak-tflops, --bandwidth-gbs and --memory-gb",
        )
    if gpus > 1 and own.link_gbs is None:
        raise ConfigError("several custom devices need a link", hint="give --link-gbs")
    peaks = {Arithmetic.SIXTEEN_BIT: own.peak_tflops * 1e12}
    if own.peak_8bit_tflops is not None:
        peaks |= dict.fromkeys((Arithmetic.INT8, Arithmetic.FP8), own.peak_8bit_tflops * 1e12)
    memory_bytes = own.memory_gb * 1e9
    chunk_tokens, max_running = served_by_default(memory_bytes)
    given = ("peak_flops", "bandwidth_bytes_per_s", "memory_bytes", "link_bytes_per_s", "price_per_hour")
    return Accelerator(
        name=CUSTOM,
        peak_flops=peaks,
        bandwidth_bytes_per_s=own.bandwidth_gbs * 1e9,
        memory_bytes=memory_bytes,
        link_bytes_per_s=(own.link_gbs or 0.0) * 1e9,
        price_per_hour=price_per_hour,
        chunk_tokens=chunk_tokens,
        max_running=max_running,
        sources=dict.fromkeys(given, "as given"),
    )

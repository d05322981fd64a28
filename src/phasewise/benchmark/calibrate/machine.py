"""How fast an engine's machine reads memory and multiplies, where that is known.

It separates weights from overhead in the constant cost of a step, and shows how busy math and memory are in
each phase. Every source is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from phasewise.benchmark.calibrate.result import SIXTEEN_BIT_BYTES, CalibratedMachine
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.units import size
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.fleet.engines.known_models import read_model_config
from phasewise.fleet.local.placement import visible_gpus

# --- How fast one core of this machine reads memory, measured.

READ_BYTES = 512 * 2**20
"""More than any cache holds."""
REPEATS = 4


def core_read_bytes_per_s() -> float:
    """Read a large array several times on one core; the best time counts, as other load only slows it."""
    data = np.ones(READ_BYTES // 8, dtype=np.int64)
    best_s = min(_read_s(data) for _ in range(REPEATS))
    return READ_BYTES / best_s


def _read_s(data: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    started_s = time.perf_counter()
    # The maximum of integers: one pass over them, while a sum would be bound by arithmetic.
    data.max()
    return time.perf_counter() - started_s


MULTIPLY = """
import time
import numpy as np
side = 1536
left, right = np.ones((2, side, side), dtype=np.float32)
def took_s():
    started_s = time.perf_counter()
    left @ right
    return time.perf_counter() - started_s
took_s()
print(2 * side**3 / min(took_s() for _ in range(4)))
"""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")


def core_flops_per_s() -> float:
    """Multiply two matrices on one core, in a process of its own: libraries count threads when they load."""
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", MULTIPLY], env={**os.environ, **ONE_THREAD}, capture_output=True, check=True
    )
    return float(done.stdout)


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_given(gpu: str | None, config: str | None, home: Path) -> None:
    """Reject unusable options before anything is probed."""
    if gpu is not None and gpu not in ACCELERATORS:
        raise UsageError(f"--gpu {gpu} is unknown", hint=f"known: {', '.join(ACCELERATORS)}")
    if config is not None:
        architecture_of(read_model_config(config, home, os.environ))


class NumberFormat(StrEnum):
    """How an engine keeps its numbers."""

    SIXTEEN_BIT = "16bit"
    FLOAT32 = "float32"

    @property
    def element_bytes(self) -> float:
        """What one of them takes."""
        return 2 * SIXTEEN_BIT_BYTES if self is NumberFormat.FLOAT32 else SIXTEEN_BIT_BYTES


@dataclass(frozen=True, slots=True)
class Devices:
    """The user's description of the hardware: a known device, or its memory bandwidth and arithmetic, and how
    many; `element_bytes` is what a number of the model takes in it.
    """

    gpu: str | None = None
    count: int = 1
    bandwidth_gbs: float | None = None
    peak_tflops: float | None = None
    element_bytes: float = SIXTEEN_BIT_BYTES


def find_machine(url: str, model: str | None, devices: Devices, home: Path) -> CalibratedMachine | None:
    """The `model` against the devices' memory and arithmetic, or a core's if the engine runs on this CPU.

    None where the model's configuration is not on this machine, or the engine's hardware is unknown.
    `check_given` has accepted the device.
    """
    read_bytes_per_s, source = _bandwidth(url, devices)
    if read_bytes_per_s is None or model is None:
        return None
    try:
        architecture = architecture_of(read_model_config(model, home, os.environ))
    except ConfigError:
        # A model elsewhere, or one of unknown size: the fit is valid without it.
        return None
    return CalibratedMachine(
        architecture, devices.element_bytes, read_bytes_per_s, source, *_arithmetic(devices)
    )


def _arithmetic(devices: Devices) -> tuple[float, str]:
    if devices.peak_tflops is not None:
        per_s = devices.peak_tflops * 1e12 * devices.count
        return per_s, f"{per_s / 1e12:g} TFLOP/s, given"
    if devices.gpu is not None:
        device = ACCELERATORS[devices.gpu]
        per_s = device.peak_flops[Arithmetic.SIXTEEN_BIT] * devices.count
        return per_s, f"the peak of {devices.count} x {device.name}"
    per_s = core_flops_per_s()
    return per_s, f"one core of this machine multiplies {per_s / 1e9:.0f} GFLOP/s in float32, measured"


def _bandwidth(url: str, devices: Devices) -> tuple[float | None, str]:
    if devices.bandwidth_gbs is not None:
        per_s = devices.bandwidth_gbs * 1e9 * devices.count
        return per_s, f"at the {size(per_s)}/s given"
    if devices.gpu is not None:
        device = ACCELERATORS[devices.gpu]
        per_s = device.bandwidth_bytes_per_s * devices.count
        return per_s, f"at the peak bandwidth of {devices.count} x {device.name}"
    if urlsplit(url).hostname not in LOOPBACK or visible_gpus(os.environ):
        return None, ""
    per_s = core_read_bytes_per_s()
    return per_s, f"one core of this machine reads {size(per_s)}/s, measured"

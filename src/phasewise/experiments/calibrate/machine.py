"""How long an engine's machine needs to read the weights once, where that is known.

It separates weights from overhead in the constant cost of a step. Every source is named.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from phasewise.core.errors import ConfigError
from phasewise.core.units import size
from phasewise.costs.roofline.accelerators import ACCELERATORS
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.step_demand import decodes, demand_of
from phasewise.experiments.calibrate.result import CalibratedMachine
from phasewise.fleet.engines.model_config_file import read_model_config
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


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_given(gpu: str | None, config: str | None, home: Path) -> None:
    """Reject unusable options before anything is probed."""
    if gpu is not None and gpu not in ACCELERATORS:
        raise ConfigError(f"--gpu {gpu} is unknown", hint=f"known: {', '.join(ACCELERATORS)}")
    if config is not None:
        architecture_of(read_model_config(config, home, os.environ))


@dataclass(frozen=True, slots=True)
class Devices:
    """The user's description of the hardware: a known device, or its memory bandwidth, and how many."""

    gpu: str | None = None
    count: int = 1
    bandwidth_gbs: float | None = None


def find_machine(url: str, model: str | None, devices: Devices, home: Path) -> CalibratedMachine | None:
    """The weights of `model` against the memory of the devices, or of a core if the engine runs on this CPU.

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
    # What one stream reads: of experts those it needs, of the embeddings only the output head.
    read = demand_of(architecture, 2.0, [decodes(1, 0)]).weight_bytes
    return CalibratedMachine(read, read_bytes_per_s, source)


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

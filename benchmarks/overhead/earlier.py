"""Sources of an earlier commit, to measure what a change costs."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from .tools import REPOSITORY


def sources_before(added_with: str, folder: Path) -> Path | None:
    """The sources before the commit that added this file; None in a clone that does not reach so far."""
    added = git("log", "--diff-filter=A", "--format=%H", "-1", "--", added_with).decode().strip()
    archive = git("archive", f"{added}^", "src") if added else b""
    if not archive:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def git(*words: str) -> bytes:
    """What git prints; nothing if it fails."""
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=False).stdout

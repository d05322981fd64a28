"""What tests download once and keep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from tests.paths import ROOT


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """The file or folder of this name; `fetch` makes it if it is missing."""
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    path = home / name
    if not path.exists():
        home.mkdir(parents=True, exist_ok=True)
        with (home / f"{name}.lock").open("w") as lock:
            # Tests run in several processes, and each may be the first to want it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                fetch(path)
    return path

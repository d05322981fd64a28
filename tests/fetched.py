"""What tests download once and keep."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.paths import ROOT

DOWNLOAD_WITHIN_S = 300.0


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


@contextmanager
def downloaded_wheels(wheels: str, into: Path, *options: str) -> Iterator[list[zipfile.ZipFile]]:
    """These wheels, each with its hash, until the block is left; they come from a package index.

    Their files lie beside `into`, so that what is made of them can be renamed to it.
    """
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        wanted = Path(folder) / "wheels.txt"
        wanted.write_text(wheels)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
        command = [*pip, "--only-binary=:all:", "--dest", folder, "--requirement", str(wanted), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_WITHIN_S, check=False)
        if done.returncode:
            raise RuntimeError(
                f"{into.name} could not be downloaded: {done.stderr[-1000:]}\n"
                "hint: it needs x86-64 Linux and a package index"
            )
        with ExitStack() as stack:
            yield [stack.enter_context(zipfile.ZipFile(path)) for path in Path(folder).glob("*.whl")]

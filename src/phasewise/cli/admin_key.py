"""Finds the admin key of a gateway that was started on this machine, in the run folder it was written to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from phasewise.config import phasewise_home


def find_admin_key(url: str, environ: Mapping[str, str]) -> str | None:
    """The key of the gateway at this address, if its run file is here and readable."""
    del url
    run = phasewise_home(environ) / "run"
    for path in _newest_first(run):
        return path.read_text(encoding="ascii").strip()
    return None


def _newest_first(run: Path) -> list[Path]:
    found = [*run.glob("*.admin-key"), *run.glob("admin-key")]
    return sorted(found, key=lambda path: -path.stat().st_mtime)

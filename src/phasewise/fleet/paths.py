"""Where phasewise keeps what it installs and starts on this machine.

It only names folders: whoever writes into one makes it.
"""

from __future__ import annotations

from pathlib import Path


def engine_folder(home: Path) -> Path:
    """The engine's own Python environment."""
    return home / "engine"


def models_folder(home: Path) -> Path:
    """Models fetched by name, one folder each."""
    return home / "models"


def run_folder(home: Path) -> Path:
    """What runs now: one record per fleet."""
    return home / "run"


def logs_folder(home: Path) -> Path:
    """Logs of engines and installations."""
    return home / "logs"

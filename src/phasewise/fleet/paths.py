"""Where phasewise keeps what it installs and starts on this machine.

It only names folders: whoever writes into one makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def phasewise_home(environ: Mapping[str, str]) -> Path:
    """The data folder: PHASEWISE_HOME, else $XDG_DATA_HOME/phasewise, else ~/.local/share/phasewise."""
    if chosen := environ.get("PHASEWISE_HOME"):
        return Path(chosen).expanduser().absolute()
    if data_home := environ.get("XDG_DATA_HOME"):
        return Path(data_home).expanduser().absolute() / "phasewise"
    return Path.home() / ".local" / "share" / "phasewise"


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

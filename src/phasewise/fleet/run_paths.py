"""Names the files a running fleet keeps, all of them private to the user.

What stands in them is for their writers and readers to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phasewise.fleet.paths import logs_folder, run_folder

STATE_SUFFIX = ".json"


@dataclass(frozen=True)
class RunPaths:
    """The files of one fleet."""

    home: Path
    name: str

    @property
    def state(self) -> Path:
        """What runs now, written by the supervisor."""
        return run_folder(self.home) / f"{self.name}{STATE_SUFFIX}"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return run_folder(self.home) / f"{self.name}.lock"

    @property
    def plan(self) -> Path:
        """What a supervisor in the background is told to start."""
        return run_folder(self.home) / f"{self.name}.plan"

    @property
    def gateway_file(self) -> Path:
        """What the gateway is started with."""
        return run_folder(self.home) / f"{self.name}.gateway"

    @property
    def admin_key(self) -> Path:
        """The key to the gateway's own endpoints."""
        return run_folder(self.home) / f"{self.name}.admin-key"

    @property
    def supervisor_log(self) -> Path:
        """What a supervisor in the background has to say."""
        return logs_folder(self.home) / f"{self.name}-supervisor.log"

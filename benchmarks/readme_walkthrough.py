"""Types README's commands as they stand there, in a fresh environment, and times each.

    python benchmarks/readme_walkthrough.py [--demo] [--quick] [--port N] [--json]

A fresh clone, a fresh virtual environment, a fresh home for engine and model. The commands are those under
"With vLLM", with --demo those under "Try it". `--quick` leaves out what installs engine and model and takes
those of PHASEWISE_HOME (or .phasewise beside this folder) instead. The gateway's port 8080 must be free;
--port chooses another, and the next one for the engine. The last line is one JSON object: total_s and the
seconds of each command; with --demo also the seconds from nothing to a verdict, the megabytes of environment
and home, the share of processor time that the hypervisor took, the verdict and its first advice.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from script import command_line, print_record, say

from phasewise.clients.host import CpuTimes, read_cpu_times

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = ("phasewise engine install", "phasewise model fetch")
SLOW = 3
"""What `phasewise diagnose` exits with if it finds something slow, as it does in the demo."""


def main() -> None:
    """Walk through and print the record."""
    parser = command_line(__doc__, quick="use an engine and a model that are there")
    parser.add_argument("--demo", action="store_true", help="the commands that need no vLLM")
    parser.add_argument("--port", type=int, help="the gateway's port; the engine takes the next")
    options = parser.parse_args()
    commands = [
        command
        for command in readme_commands("Try it" if options.demo else "With vLLM")
        if not (options.quick and command.startswith(INSTALLS))
    ]
    with tempfile.TemporaryDirectory(prefix="phasewise-walk-") as folder:
        walk = Walk(Path(folder), options.quick, options.demo, options.port)
        walk.through(commands)
    record = {
        "total_s": round(sum(walk.timed.values()), 1),
        "quick": options.quick,
        **(walk.facts if options.demo else {}),
        "commands": walk.timed,
    }
    print_record(record, options)


def readme_commands(title: str) -> list[str]:
    """The commands of a section of README, lines that go on joined."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    if block is None:
        raise SystemExit(f'README has no commands under "{title}"')
    lines = block[1].replace("\\\n", " ").strip().splitlines()
    commands: list[str] = []
    for line in lines:
        if commands and commands[-1].count("'") % 2:
            commands[-1] += line.strip()  # a quoted body that goes over several lines
        else:
            commands.append(line.partition(" #")[0].rstrip())
    return commands


@dataclass
class Walk:
    """One walk: the seconds of each command, and what the demo came to."""

    folder: Path
    quick: bool
    demo: bool
    port: int | None
    timed: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def through(self, commands: list[str]) -> None:
        """Run the commands one after another; the first that fails ends it."""
        clone, environment, home = (self.folder / name for name in ("clone", "venv", "home"))
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if self.quick:
            borrow(Path(os.environ.get("PHASEWISE_HOME", ROOT / ".phasewise")), home)
        variables = os.environ | {
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "PHASEWISE_HOME": str(home),
        }
        variables.pop("PYTHONPATH", None)
        began_s, cpu = time.monotonic(), read_cpu_times()
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        self.timed["python -m venv"] = round(time.monotonic() - began_s, 1)
        try:
            for command in commands:
                reply = self._run(command, clone, variables)
                if self.demo and command.startswith("phasewise diagnose"):
                    self.facts = {
                        "seconds": round(time.monotonic() - began_s, 1),
                        "megabytes": round(megabytes(environment) + megabytes(home), 1),
                        "steal_share": stolen(cpu, read_cpu_times()),
                        **verdict_in(reply),
                    }
        finally:
            down = ["bash", "-c", "phasewise down || true"]
            subprocess.run(down, cwd=clone, env=variables, capture_output=True, check=False)

    def _run(self, command: str, clone: Path, variables: dict[str, str]) -> bytes:
        typed, judges = command, command.startswith("phasewise diagnose")
        if self.port is not None and command.startswith("phasewise up"):
            typed += f" --port {self.port} --engine-port {self.port + 1}"
        if self.demo and judges:
            typed += " --json"
        say(f"$ {typed}")
        started_s = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", typed], cwd=clone, env=variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.demo else sys.stderr, check=False,
        )  # fmt: skip
        if done.returncode != 0 and not (self.demo and judges and done.returncode == SLOW):
            raise SystemExit(f"README's command failed with exit code {done.returncode}: {typed}")
        self.timed[command] = round(time.monotonic() - started_s, 1)
        say(f"[{self.timed[command]} s]")
        return done.stdout or b""


def verdict_in(printed: bytes) -> dict[str, Any]:
    """What `phasewise diagnose --json` found."""
    found = json.loads(printed)
    fixes = (found["advice"] or {"fixes": []})["fixes"]
    return {
        "verdict": found["verdict"],
        "cause": found["cause"],
        "advice": fixes[0]["what"] if fixes else None,
    }


def megabytes(folder: Path) -> float:
    """What a folder takes on the disk; what is linked from elsewhere is not counted."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / 1e6


def stolen(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of all processor time between two readings that the hypervisor took."""
    if before is None or after is None or after.total_s <= before.total_s:
        return None
    return round((after.stolen_s - before.stolen_s) / (after.total_s - before.total_s), 3)


def borrow(installed: Path, home: Path) -> None:
    """A home with another's engine and models and with fleets of its own: README's commands name no fleet."""
    home.mkdir()
    for name in ("engine", "models"):
        (home / name).symlink_to(installed.resolve() / name)


if __name__ == "__main__":
    main()

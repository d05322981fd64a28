"""Types README's "Try it" commands as they stand there, in a fresh environment, and times each.

    python benchmarks/readme_walkthrough.py [--quick] [--json]

A fresh clone, a fresh virtual environment, a fresh home for engine and model. `--quick` leaves out what
installs engine and model and takes those of PHASEWISE_HOME (or .phasewise beside this folder) instead. The
gateway's port 8080 must be free. The last line is one JSON object: total_s and the seconds of each command.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = ("phasewise engine install", "phasewise model fetch")


def main() -> None:
    """Walk through and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="use an engine and a model that are there")
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    options = parser.parse_args()
    commands = [
        command for command in readme_commands() if not (options.quick and command.startswith(INSTALLS))
    ]
    with tempfile.TemporaryDirectory(prefix="phasewise-walk-") as folder:
        timed = walk(commands, Path(folder), options.quick)
    record = {"total_s": round(sum(seconds for _, seconds in timed), 1), "quick": options.quick}
    if not options.json:
        print(json.dumps(record | {"commands": dict(timed)}, indent=2))
    print(json.dumps(record | {"commands": dict(timed)}))


def readme_commands() -> list[str]:
    """The commands of README's "Try it", lines that go on joined."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Try it\n")[2]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    if block is None:
        raise SystemExit('README has no commands under "Try it"')
    lines = block[1].replace("\\\n", " ").strip().splitlines()
    commands: list[str] = []
    for line in lines:
        if commands and commands[-1].count("'") % 2:
            commands[-1] += line.strip()  # a quoted body that goes over several lines
        else:
            commands.append(line)
    return commands


def walk(commands: list[str], folder: Path, quick: bool) -> list[tuple[str, float]]:
    """Run the commands one after another; the first that fails ends it."""
    clone, environment = folder / "clone", folder / "venv"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    home = folder / "home"
    if quick:
        borrow(Path(os.environ.get("PHASEWISE_HOME", ROOT / ".phasewise")), home)
    variables = os.environ | {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(environment),
        "PHASEWISE_HOME": str(home),
    }
    timed = []
    try:
        for command in commands:
            say(f"$ {command}")
            started_s = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", command], cwd=clone, env=variables, stdin=subprocess.DEVNULL,
                stdout=sys.stderr, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise SystemExit(f"README's command failed with exit code {done.returncode}: {command}")
            timed.append((command, round(time.monotonic() - started_s, 1)))
            say(f"[{timed[-1][1]} s]")
    finally:
        down = ["bash", "-c", "phasewise down || true"]
        subprocess.run(down, cwd=clone, env=variables, capture_output=True, check=False)
    return timed


def borrow(installed: Path, home: Path) -> None:
    """A home with another's engine and models and with fleets of its own: README's commands name no fleet."""
    home.mkdir()
    for name in ("engine", "models"):
        (home / name).symlink_to(installed.resolve() / name)


def say(line: str) -> None:
    """Progress, as it happens."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

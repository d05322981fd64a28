"""What all benchmarks have in common as scripts: options, home, progress, the last line, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[1] / ".phasewise"


def command_line(description: str | None, quick: str = "short: proves that the script runs") -> Parser:
    """A parser with --quick, which `quick` explains, and --json."""
    end_in_order_when_told()
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    return parser


class Parser(argparse.ArgumentParser):
    """Knows the options that several benchmarks have."""

    def add_home(self) -> None:
        """Add --home; `use_home` makes it that of all commands."""
        self.add_argument("--home", type=Path, default=HOME, help="where engine and model are installed")


def use_home(home: Path = HOME) -> None:
    """Let commands find engine and model here, unless PHASEWISE_HOME says where they are."""
    os.environ.setdefault("PHASEWISE_HOME", str(home))


def say(text: str) -> None:
    """Print progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def print_record(record: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the last line, and before it, unless --json was given, the same for people."""
    if not options.json:
        print(json.dumps(record, indent=2))
    print(json.dumps(record))


def interpreter() -> str:
    """The Python that measures."""
    return " ".join((platform.python_implementation(), platform.python_version(), *platform.python_build()))


def end_in_order_when_told() -> None:
    """Let SIGTERM leave through every `with` and `finally`, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

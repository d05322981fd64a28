"""Commands that only speak to addresses start on systems without /proc, uvloop and what else Linux has."""

import subprocess
import sys

import pytest

ELSEWHERE = """
import builtins, io, os, sys
sys.modules["uvloop"] = None  # an import of it fails
for name in ("sched_getaffinity", "sched_setaffinity", "eventfd", "memfd_create", "pidfd_open"):
    if hasattr(os, name):
        delattr(os, name)

def without_proc(wrapped):
    def opened(path, *arguments, **options):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(path)
        return wrapped(path, *arguments, **options)
    return opened

import psutil  # it has another way of reading on every system
builtins.open, io.open, os.scandir, os.listdir = map(
    without_proc, (builtins.open, io.open, os.scandir, os.listdir)
)
from typer.testing import CliRunner
from phasewise.cli.app import app
result = CliRunner().invoke(app, sys.argv[1:])
print(result.output)
if result.exception is not None and not isinstance(result.exception, SystemExit):
    raise result.exception
raise SystemExit(result.exit_code)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "--help"],
        ["bench", "--help"],
        ["compare", "--help"],
        ["model", "sheet", "examples/models/smollm2-135m.json"],
    ],
)
def test_a_command_starts_without_what_only_linux_has(arguments):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr


def test_without_uvloop_a_run_has_the_event_loop_of_asyncio():
    program = (
        "import asyncio, sys; sys.modules['uvloop'] = None\n"
        "from phasewise.clients import event_loop\n"
        "assert event_loop.run is asyncio.run"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)

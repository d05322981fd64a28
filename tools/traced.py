"""Runs a module and notes which source files execute: `python -m traced OUT MODULE ARG...`.

SIGRTMIN forgets what was noted so far; SIGRTMAX writes what was noted since, and so does the end. Code that
runs when a module is imported does not count. A process that was started by exec notes from `watch` on.
"""

from __future__ import annotations

import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_seen: set[str] = set()
_importing = threading.local()


def _imports(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>"


def _note(frame: FrameType, event: str, arg: Any) -> None:  # noqa: ANN401 - as Python calls it
    code = frame.f_code
    if _imports(frame):
        _importing.depth = getattr(_importing, "depth", 0) + (event == "call") - (event == "return")
    elif event == "call" and code.co_name != "<module>" and not getattr(_importing, "depth", 0):
        _seen.add(code.co_filename)


def watch(out: str) -> Callable[..., None]:
    """Note from now on; what is returned writes it."""

    def write(*_: object) -> None:
        Path(out).write_text("\n".join(sorted(file for file in _seen if "phasewise" in file)))

    signal.signal(signal.SIGRTMIN, lambda *_: _seen.clear())
    signal.signal(signal.SIGRTMAX, write)
    # Whoever calls this may be imported itself.
    _importing.depth = sum(_imports(frame) for frame, _ in traceback.walk_stack(None))
    threading.setprofile(_note)
    sys.setprofile(_note)
    return write


def main() -> None:
    """Run the module under the profiler."""
    out, module, *arguments = sys.argv[1:]
    write = watch(out)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        if not Path(out).exists():
            write()


if __name__ == "__main__":
    main()

"""Processes that a case needs beside the engines: begun here, and always ended here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SPIN = "while True: pass"


@contextlib.contextmanager
def running(command: Sequence[str], cores: Sequence[int] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A quiet process, on these cores if any are named, killed at the end."""
    pinned = ("taskset", "-c", ",".join(map(str, cores))) if cores else ()
    process = subprocess.Popen(
        [*pinned, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill what runs in the session that the process leads, if anything does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def cpu_hogs(count: int, cores: Sequence[int]) -> Iterator[None]:
    """So many processes that never give these cores up."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(running((sys.executable, "-c", SPIN), cores))
        yield


@contextlib.contextmanager
def stopping(session_of: Callable[[], int], stop_s: float, run_s: float) -> Iterator[None]:
    """Stop a session of processes again and again for `stop_s`, and let it run for `run_s` between."""
    over = threading.Event()

    def alternate() -> None:
        while not over.wait(run_s):
            send(signal.SIGSTOP)
            over.wait(stop_s)
            send(signal.SIGCONT)

    def send(number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session_of(), number)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

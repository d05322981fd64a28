"""Runs one measurement in front of a person: a live line while it lasts, and Ctrl-C that keeps the result."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from phasewise.bench.generator import LoadGenerator, Progress
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec, measure
from phasewise.cli.live_view import live_line


async def measure_with_view(url: str, spec: RunSpec, label: str = "measuring") -> BenchRun:
    """Measure, showing how it goes; the first Ctrl-C ends the run early, the second the program."""
    started: list[LoadGenerator] = []

    def progress() -> Progress | None:
        return started[-1].progress() if started else None

    with _stopped_by_interrupt(lambda: started[-1] if started else None):
        async with live_line(label, progress, sys.stderr):
            return await measure(url, spec, started.append)


@contextmanager
def _stopped_by_interrupt(generator: Callable[[], LoadGenerator | None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def stop() -> None:
        # A second Ctrl-C ends the program as usual.
        loop.remove_signal_handler(signal.SIGINT)
        running = generator()
        if running is not None:
            running.stop()
        elif task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def allow_many_streams() -> None:
    """Let this process hold as many sockets open as the system permits: a stream takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

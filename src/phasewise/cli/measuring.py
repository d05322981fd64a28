"""Runs one measurement in front of a person: a live line while it lasts, and Ctrl-C that keeps the result."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from phasewise.bench.generator import LoadGenerator, Progress
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec, measure
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.live_view import live_line


async def measure_with_view(url: str, spec: RunSpec, label: str, interrupts: Interrupts) -> BenchRun:
    """Measure, showing how it goes; a Ctrl-C while it runs ends it early, one before cancels it."""

    def started(generator: LoadGenerator) -> None:
        interrupts.running = generator

    def progress() -> Progress | None:
        return None if interrupts.running is None else interrupts.running.progress()

    try:
        async with live_line(label, progress, sys.stderr):
            return await measure(url, spec, started)
    finally:
        interrupts.running = None


def allow_many_streams() -> None:
    """Let this process hold as many sockets open as the system permits: a stream takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65_536
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""Runs one measurement in front of a person: a live line while it lasts, and Ctrl-C that keeps the result."""

from __future__ import annotations

import sys

from phasewise.bench.generator import LoadGenerator
from phasewise.bench.run import BenchRun
from phasewise.bench.session import RunSpec, measure
from phasewise.cli.interrupts import Interrupts
from phasewise.cli.live_view import live_line, status


async def measure_with_view(url: str, spec: RunSpec, label: str, interrupts: Interrupts) -> BenchRun:
    """Measure, showing how it goes; a Ctrl-C while it runs ends it early, one before cancels it."""
    generators: list[LoadGenerator] = []

    def started(generator: LoadGenerator) -> None:
        generators.append(generator)
        interrupts.running = generator

    def words() -> str:
        return status(generators[0].progress() if generators else None)

    try:
        async with live_line(label, words, sys.stderr):
            return await measure(url, spec, started)
    finally:
        interrupts.running = None

"""Runs one measurement or calibration with a live progress line; Ctrl-C keeps the result so far."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from phasewise import __version__
from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, Course, calibrate
from phasewise.benchmark.calibrate.result import Calibration
from phasewise.benchmark.generator import LoadGenerator
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec, measure
from phasewise.benchmark.workload.presets import Shape
from phasewise.report.bench.measured import status, workload_in_words
from phasewise.report.console import live_line


@dataclass(slots=True)
class Interrupts:
    """Measures with live progress, and turns Ctrl-C into an orderly end.

    A run is stopped and returns what it has. Anything else, such as preparing prompts or starting a fleet, is
    cancelled; a caller with results checks `forgives` and returns them.
    """

    requested: bool = False
    running: LoadGenerator | Course | None = None
    _task: asyncio.Task[Any] | None = field(default=None, init=False)

    @contextmanager
    def handled(self, *others: signal.Signals) -> Iterator[None]:
        """Handle Ctrl-C, and `others` in the same way, for the current task within the block.

        Signals that are ignored stay ignored: under nohup a run outlives its terminal.
        """
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        handled = [signal.SIGINT, *(each for each in others if signal.getsignal(each) is not signal.SIG_IGN)]
        for each in handled:
            loop.add_signal_handler(each, self._stop)
        try:
            yield
        finally:
            for each in handled:
                loop.remove_signal_handler(each)

    def forgives(self) -> bool:
        """Whether a cancellation came from Ctrl-C; if so it is cleared, and the task may continue."""
        if self.requested and self._task is not None:
            self._task.uncancel()
        return self.requested

    async def measure(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        """Measure with live progress. Ctrl-C ends a running measurement early and cancels one that is not yet
        running.

        It may also come after the last reply, while the engine's record is read. The run is whole then, and
        counts as cut short, so that nothing more is measured.
        """
        generators: list[LoadGenerator] = []

        def started(generator: LoadGenerator) -> None:
            generators.append(generator)
            self.running = generator

        def words() -> str:
            return status(generators[0].progress() if generators else None)

        try:
            async with live_line(label, words, sys.stderr):
                run = await measure(url, spec, started)
            return replace(run, cut_short=run.cut_short or self.requested)
        finally:
            self.running = None

    async def calibrate(self, url: str, spec: CalibrateSpec) -> Calibration:
        """Calibrate with live progress. Ctrl-C fits what was measured so far, a second one aborts."""
        course = Course()
        self.running = course

        def words() -> str:
            seen = course.progress
            if seen is None:
                return "asking the engine"
            return f"{seen.elapsed_s:.0f} of {seen.budget_s:.0f} s, {seen.done}"

        try:
            async with live_line("calibrating", words, sys.stderr):
                return await calibrate(url, spec, course)
        finally:
            self.running = None

    def _stop(self) -> None:
        again, self.requested = self.requested, True
        if self.running is not None and not again:
            self.running.stop()
        elif self._task is not None:
            self._task.cancel()


# --- The facts about a run that its report shows.

_KEY_OPTION = re.compile(r"--(?:[\w-]+-)?key")
"""Options whose value is a key. Options that name a key file end differently."""


def repeating_command(seed: int) -> str:
    """The command as it was typed, with the seed that repeats its requests."""
    typed = command_line()
    return typed if "--seed" in typed else f"{typed} --seed {seed}"


def command_line(arguments: list[str] | None = None) -> str:
    """The command as it was typed, without the keys it may hold."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for index, word in enumerate(words):
        option, is_joined, _ = word.partition("=")
        if _KEY_OPTION.fullmatch(option) is None:
            continue
        if is_joined:
            words[index] = f"{option}=***"
        elif index + 1 < len(words):
            words[index + 1] = "***"
    return shlex.join(["phasewise", *words])


def page_facts(spec: RunSpec, shape: Shape | None = None) -> dict[str, str]:
    """Workload, seed, time and machine of a run; `shape` is the planned workload."""
    return {
        "Workload": workload_in_words(spec.plan, shape),
        "Prefix cache": spec.cache.value,
        "Seed": str(spec.seed),
        "Measured": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "Load generator": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "phasewise": __version__,
    }

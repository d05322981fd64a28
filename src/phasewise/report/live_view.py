"""A progress line on stderr, redrawn twice a second.

It uses no panel library: drawing a panel takes milliseconds in which the load generator cannot send.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from phasewise.benchmark.generator import RunProgress
from phasewise.core.units import duration, elapsed
from phasewise.report.console import err

REDRAW_S = 0.5
PLAIN_EVERY_S = 10.0
"""Without a terminal, a line is added this often."""
BAR_CELLS = 20


@asynccontextmanager
async def live_line(label: str, words: Callable[[], str], stream: TextIO) -> AsyncIterator[None]:
    """Show the progress from `words` until the block ends."""
    draw = _redraw if stream.isatty() else _append
    drawing = asyncio.create_task(draw(label, words, stream))
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        if stream.isatty():
            stream.write("\r\x1b[K")
            stream.flush()


async def _redraw(label: str, words: Callable[[], str], stream: TextIO) -> None:
    while True:
        width = shutil.get_terminal_size().columns - 1
        stream.write("\r\x1b[K" + f"{label}: {words()}"[:width])
        stream.flush()
        await asyncio.sleep(REDRAW_S)


async def _append(label: str, words: Callable[[], str], stream: TextIO) -> None:
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        stream.write(f"{label}: {words()}\n")
        stream.flush()


def status(progress: RunProgress | None) -> str:
    """The progress of a run in one line; `progress` is None while it is being prepared."""
    if progress is None:
        return "preparing prompts"
    filled = round(BAR_CELLS * progress.done / max(progress.planned, 1))
    parts = [
        f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {progress.done}/{progress.planned}",
        elapsed(progress.elapsed_s),
        f"{progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0:.1f} req/s",
        f"{progress.in_flight} open",
    ]
    if progress.ttft_s is not None:
        parts.append(f"TTFT {duration(progress.ttft_s)}")
    if progress.itl_s is not None:
        parts.append(f"ITL {duration(progress.itl_s)}")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    return "  ".join(parts)


# --- Shows the stages of a long task on stderr: one line per stage with its time and latest detail.
#


class StageLines:
    """A spinner with the latest detail on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console = err) -> None:
        self._console = console
        self._status: Status | None = None
        self._label = ""
        self._started_s = 0.0

    def __enter__(self) -> StageLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def started(self, number: int, total: int, title: str) -> None:
        self._label = f"[{number}/{total}] {title}"
        self._started_s = time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(escape(self._label))
            self._status.start()
        else:
            self._console.print(self._label, markup=False, soft_wrap=True)

    def detail(self, line: str) -> None:
        if self._status is not None:
            width = max(20, self._console.width - len(self._label) - 16)
            self._status.update(
                f"{escape(self._label)} [dim]{self._elapsed()}  {escape(line.strip()[:width])}[/]"
            )

    def finished(self, outcome: str) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        self._console.print(f"{self._label}: {outcome} ({self._elapsed()})", markup=False, soft_wrap=True)

    def _elapsed(self) -> str:
        return elapsed(time.monotonic() - self._started_s)

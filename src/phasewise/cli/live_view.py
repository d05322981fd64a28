"""One line on stderr that tells how a run goes, redrawn twice a second while it does.

It is written by hand: drawing a panel takes milliseconds in which the generator could not send.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TextIO

from phasewise.bench.generator import Progress

REDRAW_S = 0.5
PLAIN_EVERY_S = 10.0
"""Where nothing can be redrawn, as in a log file, a line is added this often."""
BAR_CELLS = 20


@asynccontextmanager
async def live_line(label: str, words: Callable[[], str], stream: TextIO) -> AsyncIterator[None]:
    """Show how far it is, as `words` says, until the block ends."""
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


def status(progress: Progress | None) -> str:
    """How far a run has come, in one line; None while it is being prepared."""
    if progress is None:
        return "preparing prompts"
    filled = round(BAR_CELLS * progress.done / max(progress.planned, 1))
    parts = [
        f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {progress.done}/{progress.planned}",
        f"{progress.elapsed_s:.0f} s",
        f"{progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0:.1f} req/s",
        f"{progress.in_flight} open",
    ]
    if progress.ttft_s is not None:
        parts.append(f"TTFT {progress.ttft_s * 1000:.0f} ms")
    if progress.itl_s is not None:
        parts.append(f"ITL {progress.itl_s * 1000:.1f} ms")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    return "  ".join(parts)

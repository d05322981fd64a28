from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import StringIO

from phasewise.benchmark.generator import RunProgress
from phasewise.report import console
from phasewise.report.bench.measured import status
from phasewise.report.console import live_line


def make_progress(**fields) -> RunProgress:
    return RunProgress(**{"planned": 40, "done": 10, "failed": 0, "in_flight": 3, "elapsed_s": 5.0, **fields})


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


async def until(seen: Callable[[], bool]) -> None:
    """Wait for something, for as long as a busy machine may take."""
    async with asyncio.timeout(60):
        while not seen():  # noqa: ASYNC110 - what is waited for raises no event
            await asyncio.sleep(0.005)


def test_a_line_reports_progress_rate_and_latencies_so_far():
    line = status(make_progress(ttft_s=0.2514, itl_s=0.0312))
    assert line == "[#####...............] 10/40  5 s  2.0 req/s  3 open  TTFT 251 ms  ITL 31.2 ms"


def test_failures_are_reported_and_unknown_latencies_are_not():
    line = status(make_progress(failed=2))
    assert line.endswith("3 open  2 failed")


def test_before_the_run_it_says_what_takes_the_time():
    assert status(None) == "preparing prompts"


async def test_a_terminal_is_left_clean(monkeypatch):
    monkeypatch.setattr(console, "REDRAW_S", 0.01)
    stream = Terminal()
    async with live_line("measuring", lambda: status(make_progress()), stream):
        await until(lambda: stream.getvalue().count("10/40") >= 2)
    assert stream.getvalue().endswith("\r\x1b[K")


async def test_a_log_file_gets_lines_now_and_then(monkeypatch):
    monkeypatch.setattr(console, "PLAIN_EVERY_S", 0.01)
    stream = StringIO()
    async with live_line("measuring", lambda: status(make_progress()), stream):
        await until(lambda: stream.getvalue().count("\n") >= 2)
    assert stream.getvalue().startswith("measuring: [#####")
    assert "\x1b" not in stream.getvalue()

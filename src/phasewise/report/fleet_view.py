"""Shows a fleet: its start, its processes once it is ready, and later changes.

Progress goes to stderr and results to stdout. It reads without colour.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from phasewise.core.units import counted, duration, elapsed
from phasewise.fleet.local.state import FleetState, MemberState, ProcessStage
from phasewise.loadgen.demo_traffic import MARK, USERS
from phasewise.report.console import err, out

_STYLES = {
    ProcessStage.READY: "green",
    ProcessStage.SILENT: "yellow",
    ProcessStage.BACKING_OFF: "yellow",
    ProcessStage.DRAINING: "yellow",
    ProcessStage.FAILED: "red",
    ProcessStage.DEAD: "red",
    ProcessStage.STOPPED: "dim",
    ProcessStage.WAITING: "dim",
}
_SETTLED = frozenset({ProcessStage.READY, ProcessStage.STOPPED, ProcessStage.FAILED, ProcessStage.DEAD})
_WITHOUT_PROCESS = frozenset({ProcessStage.BACKING_OFF, ProcessStage.STOPPED, ProcessStage.FAILED})
_GAP = "   "
_EXAMPLE_QUESTION = "Why is the sky blue?"


class FleetDisplay:
    """Shows every state of a fleet: a live table on a terminal until it is ready, lines otherwise."""

    def __init__(self, console: Console = err) -> None:
        self._console = console
        self._live: Live | None = None
        self._state: FleetState | None = None
        self._began_s = time.monotonic()
        self._shown: dict[str, tuple[ProcessStage, str | None]] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._table, transient=True, refresh_per_second=5
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """End the live table; later changes are shown as lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, state: FleetState) -> None:
        """A new state of the fleet."""
        self._state = state
        for member in state.members:
            now = (member.stage, member.note)
            if self._shown.get(member.name) == now:
                continue
            self._shown[member.name] = now
            if self._live is None and member.stage is not ProcessStage.WAITING:
                self._print_line(member)

    def _print_line(self, member: MemberState) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(
            f"[{elapsed_s:6.1f}s] {member.name}: {stage_words(member)}", markup=False, soft_wrap=True
        )

    def _table(self) -> Table:
        elapsed_s = time.monotonic() - self._began_s
        table = Table.grid(padding=(0, 3, 0, 0))
        state = self._state
        if state is None:
            table.add_row(Text("starting"))
            return table
        table.title = f"fleet {state.name}, {state.model}, {elapsed(elapsed_s)}"
        table.title_justify = "left"
        table.title_style = "bold"
        for member in state.members:
            table.add_row(
                Text(f"  {member.name}"),
                Text(stage_words(member), style=_STYLES.get(member.stage, "cyan")),
                Text(_time_in_stage(member), style="dim", justify="right"),
                Text(member.url, style="dim"),
            )
        return table


def stage_words(member: MemberState) -> str:
    """A member's stage in words."""
    words = member.stage.value
    if member.stage is ProcessStage.READY and member.ready_in_s is not None:
        words = f"ready in {duration(member.ready_in_s)}"
    if member.restarts:
        words += f", {counted(member.restarts, 'restart')}"
    return f"{words} ({member.note})" if member.note else words


def _time_in_stage(member: MemberState) -> str:
    if member.stage in _SETTLED:
        return ""
    return elapsed(time.time() - member.since_unix_s)


def print_members(state: FleetState) -> None:
    """One line per process; never truncated, so that it can be copied at any width."""
    heads = ("name", "role", "stage", "url", "pid", "runs on")
    rows = [
        (
            member.name,
            member.role or "-",
            stage_words(member),
            member.url,
            _pid_words(member),
            runs_on(member),
        )
        for member in state.members
    ]
    print_rows(heads, rows, [_STYLES.get(member.stage, "cyan") for member in state.members])


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Aligned rows whose third cell, the state, has a style; never truncated."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    out.print(_line(heads, widths), style="bold", markup=False, soft_wrap=True)
    for row, style in zip(rows, styles, strict=True):
        line = Text(_line(row, widths))
        begin = sum(widths[:2]) + 2 * len(_GAP)
        line.stylize(style, begin, begin + len(row[2]))
        out.print(line, soft_wrap=True)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pid_words(member: MemberState) -> str:
    if member.process is None or member.stage in _WITHOUT_PROCESS:
        return "-"
    return str(member.process.pid)


def runs_on(member: MemberState) -> str:
    """The cores or GPUs a member has, in words."""
    kind, numbers = ("gpu", member.gpus) if member.gpus else ("core", member.cores)
    if not numbers:
        return "any core"
    return f"{kind}{'s' if len(numbers) > 1 else ''} {_ranges(numbers)}"


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 as `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def print_ready(state: FleetState, how_to_stop: str) -> None:
    """What runs, and the next commands to try."""
    print_members(state)
    out.print()
    out.print("Try it:", style="bold")
    out.print(f"  {curl_line(state)}", markup=False, soft_wrap=True)
    if state.traffic is not None:
        played = f"It plays {USERS} users of its own, who ask one question after another. The ids of their"
        out.print(f"{played} requests begin with {MARK}", markup=False, soft_wrap=True)
    where, probe = ("", " --probe") if state.traffic is None else (" In another terminal:", "")
    out.print(f"Slow to start or slow to stream?{where}", style="bold")
    out.print(f"  phasewise diagnose {state.gateway.url}{probe}", markup=False, soft_wrap=True)
    out.print(f"Logs: {Path(state.gateway.log).parent}", markup=False, soft_wrap=True)
    if state.admin_key_file is not None:
        out.print(f"Admin key: {state.admin_key_file}", markup=False, soft_wrap=True)
    out.print(how_to_stop)


def curl_line(state: FleetState) -> str:
    """A command that streams an answer, to be pasted into a shell."""
    body = {
        "model": state.model,
        "stream": True,
        "messages": [{"role": "user", "content": _EXAMPLE_QUESTION}],
    }
    key = "-H 'authorization: Bearer YOUR_KEY' " if state.keys_needed else ""
    return (
        f"curl -N {state.gateway.url}/v1/chat/completions -H 'content-type: application/json' {key}"
        f"-d {shlex.quote(json.dumps(body))}"
    )


def state_as_json(state: FleetState) -> dict[str, Any]:
    """A fleet for programs."""
    return {**state.model_dump(mode="json"), "all_ready": state.all_ready}

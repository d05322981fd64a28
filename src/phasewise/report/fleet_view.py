"""Shows a fleet: its check, its start, its processes once it is ready, and later changes.

Progress goes to stderr and results to stdout. It reads without colour.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from phasewise.benchmark.demo_traffic import MARK, USERS
from phasewise.core.units import NONE, counted, duration, elapsed, long_duration, size
from phasewise.core.worker import Role
from phasewise.fleet.check.facts import EngineFacts, TrialFacts
from phasewise.fleet.check.judgement import CheckResult
from phasewise.fleet.local.gateway_run import GatewayState, WorkerReport
from phasewise.fleet.local.state import FleetState, MemberState, ProcessStage
from phasewise.report.console import aligned, err, out

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
        self._state = state
        for member in state.members:
            now = (member.stage, member.note)
            if self._shown.get(member.name) == now:
                continue
            self._shown[member.name] = now
            if self._live is None and member.stage is not ProcessStage.WAITING:
                took = f"[{time.monotonic() - self._began_s:6.1f}s]"
                line = f"{took} {member.name}: {stage_words(member)}"
                self._console.print(line, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 3, 0, 0))
        if (state := self._state) is None:
            table.add_row(Text("starting"))
            return table
        table.title = f"fleet {state.name}, {state.model}, {elapsed(time.monotonic() - self._began_s)}"
        table.title_justify = "left"
        table.title_style = "bold"
        for member in state.members:
            in_stage = "" if member.stage in _SETTLED else elapsed(time.time() - member.since_unix_s)
            table.add_row(
                Text(f"  {member.name}"),
                Text(stage_words(member), style=_STYLES.get(member.stage, "cyan")),
                Text(in_stage, style="dim", justify="right"),
                Text(member.url, style="dim"),
            )
        return table


def stage_words(member: MemberState) -> str:
    words = member.stage.value
    if member.stage is ProcessStage.READY and member.ready_in_s is not None:
        words = f"ready in {duration(member.ready_in_s)}"
    if member.restarts:
        words += f", {counted(member.restarts, 'restart')}"
    return f"{words} ({member.note})" if member.note else words


def print_members(state: FleetState) -> None:
    """One line per process; never truncated, so that it can be copied at any width."""
    heads = ("name", "role", "stage", "url", "pid", "runs on")
    rows = []
    for member in state.members:
        process = None if member.stage in _WITHOUT_PROCESS else member.process
        pid = "-" if process is None else str(process.pid)
        words = stage_words(member)
        rows.append((member.name, member.role or "-", words, member.url, pid, runs_on(member)))
    _print_rows(heads, rows, [_STYLES.get(member.stage, "cyan") for member in state.members])


def _print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Aligned rows whose third cell, the state, has a style."""
    for line in aligned(heads, rows, styles, state=2):
        out.print(line, soft_wrap=True)


def runs_on(member: MemberState) -> str:
    """The cores or GPUs a member has, such as `cores 0-2,5`."""
    kind, numbers = ("gpu", member.gpus) if member.gpus else ("core", member.cores)
    if not numbers:
        return "any core"
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = (str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{kind}{'s' if len(numbers) > 1 else ''} {','.join(ranges)}"


def print_ready(state: FleetState, how_to_stop: str) -> None:
    """What runs, and the next commands to try."""
    print_members(state)
    lines = ["", "[bold]Try it:[/]", f"  {escape(curl_line(state))}"]
    where, probe = "", " --probe"
    if state.traffic is not None:
        where, probe = " In another terminal:", ""
        lines.append(
            f"It plays {USERS} users of its own, who ask one question after another. The ids of their "
            f"requests begin with {MARK}"
        )
    lines.append(f"[bold]Slow to start or slow to stream?{where}[/]")
    lines.append(f"  phasewise diagnose {escape(state.gateway.url)}{probe}")
    lines.append(f"Logs: {escape(str(Path(state.gateway.log).parent))}")
    if state.admin_key_file is not None:
        lines.append(f"Admin key: {escape(str(state.admin_key_file))}")
    for line in (*lines, how_to_stop):
        out.print(line, soft_wrap=True)


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
    return {**state.model_dump(mode="json"), "all_ready": state.all_ready}


HEALTH_WORDS = {"suspect": "stands still", "hung": "stands still", "unknown": "not checked yet"}
_HEALTH_STYLES = {"up": "green", "down": "red", "unknown": "dim"}
_CIRCUIT_OPEN = "it answers and fails most of its requests; its log says why"


def print_gateway(gateway: GatewayState) -> None:
    """A gateway and all its workers; a note stands below the line of its worker."""
    models = {worker.model for worker in gateway.workers}
    serves = f", serves {models.pop()}" if len(models) == 1 and "" not in models else ""
    head = f"gateway {gateway.url}, pid {gateway.process.pid}{serves}"
    out.print(head, style="bold", markup=False, soft_wrap=True)
    rows = [
        (worker.name, worker.url, state_in_words(worker, time.time()), "" if serves else worker.model or "-")
        for worker in gateway.workers
    ]
    styles = [
        "yellow" if worker.circuit_open else _HEALTH_STYLES.get(worker.health, "yellow")
        for worker in gateway.workers
    ]
    _print_rows(("worker", "url", "state", "" if serves else "model"), rows, styles)
    for worker in gateway.workers:
        if note := _note(worker):
            out.print(f"{worker.name}: {note}", style="yellow", markup=False, soft_wrap=True)


def _note(worker: WorkerReport) -> str:
    """What is to be said of the worker, without its address, which its line has."""
    return worker.note.removeprefix(f"{worker.url} ") or (_CIRCUIT_OPEN if worker.circuit_open else "")


def print_troubled(workers: Sequence[WorkerReport]) -> None:
    """A line for each worker of a fleet that its gateway does not use as usual, or has a note on."""
    for worker in workers:
        if not worker.serves or worker.note:
            note = f": {said}" if (said := _note(worker)) else ""
            line = f"gateway: worker {worker.name}: {state_in_words(worker, time.time())}{note}"
            out.print(line, style="yellow", markup=False, soft_wrap=True)


def state_in_words(worker: WorkerReport, now_s: float) -> str:
    """A worker's state, and since when if it does not serve."""
    words = HEALTH_WORDS.get(worker.health, worker.health)
    if worker.health == "up" or worker.since_unix_s is None:
        return "up, circuit open" if worker.circuit_open else words
    since_at = time.localtime(worker.since_unix_s)
    today = time.strftime("%F", since_at) == time.strftime("%F", time.localtime(now_s))
    since = time.strftime("%H:%M:%S" if today else "%F %H:%M:%S", since_at)
    return f"{words} since {since} ({long_duration(now_s - worker.since_unix_s)})"


# --- A check: engines, pairs with their proof, and problems with their fix.

ROLE_STYLES = {Role.PREFILL: "blue", Role.DECODE: "green", Role.MIXED: "default"}
"""The colours of the phases, as in reports and on the dashboard."""


def lines_of(result: CheckResult) -> Iterator[Text]:
    """The whole result, line by line; never truncated, so that it can be copied at any width."""
    if result.ran and result.facts.engines:
        yield from _engines(result.facts.engines)
    if trials := result.facts.trials:
        yield Text()
        heads = ("pair", "KV moved", "computed again", "KV transfer", "size", "speed", "text")
        styles = ["default" if trial.proven else "red" for trial in trials]
        yield from aligned(heads, [_pair(trial) for trial in trials], styles)
    if trials or result.findings:
        yield Text()
    for finding in result.findings:
        kind, style = ("warning", "yellow") if finding.is_warning else ("wrong", "red")
        yield Text.assemble((f"{kind}: ", f"bold {style}"), finding.words, f" ({finding.mistake})")
        yield Text.assemble(("  fix: ", "bold"), finding.fix)
    yield Text(_summary(result), style="bold green" if result.ok else "bold red")


def _engines(engines: Sequence[EngineFacts]) -> Iterator[Text]:
    heads = ("engine", "role", "state", "model", "block", "KV type", "connector")
    rows = []
    for engine in engines:
        state = "ready" if engine.ready else "not ready"
        models, block = ", ".join(engine.models) or "-", str(engine.block_tokens or "-")
        connector = {True: "yes", False: "no", None: "-"}[engine.has_connector]
        rows.append(
            (engine.name, str(engine.role), state, models, block, engine.cache_dtype or "-", connector)
        )
    yield from aligned(heads, rows, [ROLE_STYLES[engine.role] for engine in engines])


def _pair(trial: TrialFacts) -> tuple[str, ...]:
    whole = "?" if trial.prompt_tokens is None else f"{trial.prompt_tokens - trial.cached_tokens}"
    moved = "-" if trial.moved_tokens is None else f"{trial.moved_tokens:g} of {whole} tokens"
    again = "-" if trial.computed_tokens is None else f"{trial.computed_tokens:g} tokens"
    speed = NONE if trial.bytes_per_s is None else f"{size(trial.bytes_per_s)}/s"
    return (
        trial.pair,
        moved if trial.ended else "not tried",
        again,
        duration(trial.kv_transfer_s),
        size(trial.moved_bytes or None),
        speed,
        {True: "equal", False: "differs", None: "-"}[trial.same_text],
    )


def _summary(result: CheckResult) -> str:
    took = f"in {duration(result.seconds)}"
    if not result.ok:
        wrong = sum(not finding.is_warning for finding in result.findings)
        return f"{counted(wrong, 'problem')} found {took}"
    if not result.ran:
        return f"nothing runs yet; the fleet can be started here (checked {took})"
    pairs = len(result.facts.trials)
    if not pairs:
        return f"all engines are ready; none has a role, so no KV is transferred (checked {took})"
    return f"{counted(pairs, 'pair')} proven by the engines' counters {took}"

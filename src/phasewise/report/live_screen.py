"""The live view as text: what is slow now, each phase with its parts, engines, tenants, requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.units import NONE, bound, count, duration, number, share
from phasewise.diagnosis.live.snapshot import (
    LiveEngine,
    LivePhase,
    LiveRequest,
    LiveSnapshot,
    LiveState,
    RequestStatus,
)
from phasewise.diagnosis.verdict import Ruling
from phasewise.report.diagnosis.words import RULINGS
from phasewise.report.fleet_view import HEALTH_WORDS
from phasewise.report.request.words import short_id

SORTS = ("ttft", "tpot", "waiting", "name")
KEYS = "q quit  s sort  / filter  f freeze  up, down, enter: open a request"
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {
    LiveState.SLOW_TO_START: "bold yellow",
    LiveState.SLOW_TO_STREAM: "bold magenta",
    LiveState.FAILING: "bold red",
    LiveState.HEALTHY: "bold green",
}
_PHASES = {LiveState.SLOW_TO_START: "TTFT", LiveState.SLOW_TO_STREAM: "TPOT"}
LEAST_SHARE = 0.02
"""A smaller part of a mean is left out."""
OLD_READING_S = 15.0
MOST_STILL = 3


@dataclass(frozen=True, slots=True)
class LiveChoices:
    """How the user wants to see it."""

    subject: str
    sort: str = SORTS[0]
    only: str = ""
    typing: bool = False
    frozen: bool = False
    selected: int = 0
    diagnose: str = "phasewise diagnose"


def state_in_words(snapshot: LiveSnapshot) -> str:
    """The state in a line: the phase and its largest part. It is no verdict and names no cause."""
    words = RULINGS[Ruling(snapshot.state.value)].upper()
    phase, part = _slow_phase(snapshot), snapshot.phase_part
    if phase is not None and part is not None:
        whole = f"{_PHASES[snapshot.state]} {duration(phase.mean_s)}"
        words += f": {part.part} {duration(part.seconds)} of {whole}"
    if snapshot.also_slow is not None:
        words += f"; also {RULINGS[Ruling(snapshot.also_slow.value)]}"
    return words


def _slow_phase(snapshot: LiveSnapshot) -> LivePhase | None:
    return {"TTFT": snapshot.start, "TPOT": snapshot.stream}.get(_PHASES.get(snapshot.state, ""))


def chosen_requests(snapshot: LiveSnapshot, choices: LiveChoices) -> list[LiveRequest]:
    """The requests to list, in the order asked for; those that stand still come first."""
    keys: dict[str, Callable[[LiveRequest], float]] = {
        "ttft": lambda request: request.age_s if request.ttft_s is None else request.ttft_s,
        "tpot": lambda request: request.tpot_s or 0.0,
        "waiting": lambda request: request.age_s if request.ttft_s is None else 0.0,
    }
    keys["name"] = lambda request: request.age_s
    by = keys[choices.sort]
    fit = [
        request
        for request in snapshot.requests
        if _fits(choices, request.request_id, request.tenant, request.engine, request.status)
    ]
    return sorted(fit, key=lambda request: (request.status is not RequestStatus.STANDS_STILL, -by(request)))


def render(snapshot: LiveSnapshot, choices: LiveChoices, width: int, height: int | None = None) -> Group:
    """The whole screen; without a `height` nothing is left out."""
    head = [*_head(snapshot, choices, width), *_phases(snapshot, width), _traffic(snapshot), Text("")]
    engines = _chosen_engines(snapshot, choices)
    requests = chosen_requests(snapshot, choices)
    still = _still_lines(requests)
    below = len(snapshot.not_observed) + len(still)
    rows = None if height is None else max(2, height - len(head) - 6 - below)
    most = (len(engines), len(requests)) if rows is None else _shares(len(engines), len(requests), rows)
    parts: list[RenderableType] = [*head, _engine_table(engines[: most[0]], snapshot)]
    if len(engines) > most[0]:
        parts.append(Text(f"and {len(engines) - most[0]} more engines; / filters them", style="dim"))
    if requests[: most[1]]:
        parts += [Text(""), _request_table(requests[: most[1]], choices), *still]
    parts += [_line(f"not observed: {unseen}", "dim") for unseen in snapshot.not_observed]
    if height is not None and choices.typing:
        parts.append(Text(f"filter: {choices.only}_", style="bold"))
    elif height is not None:
        only = f"  filter: {choices.only}" if choices.only else ""
        parts.append(Text(f"{KEYS}  (by {choices.sort}{only})", style="dim"))
    return Group(*parts)


def _shares(engines: int, requests: int, rows: int) -> tuple[int, int]:
    """How many lines each table gets: engines at most half, unless requests leave some."""
    for_engines = min(engines, max(rows // 2, rows - requests))
    return for_engines, max(0, min(requests, rows - for_engines))


def _fits(choices: LiveChoices, *texts: str) -> bool:
    return not choices.only or any(choices.only.lower() in text.lower() for text in texts)


def _head(snapshot: LiveSnapshot, choices: LiveChoices, width: int) -> list[Text]:
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at_unix_s))
    right = f"{clock}, last {snapshot.window_s:.0f} s{', FROZEN' if choices.frozen else ''}"
    subject = choices.subject[: max(0, width - len(right) - 2)]
    title = Text(f"{subject}{' ' * max(2, width - len(subject) - len(right))}{right}", style="dim")
    head = [title, _line(state_in_words(snapshot), _STYLES.get(snapshot.state, "bold"))]
    objective = f"TTFT {bound(snapshot.slo_ttft_s)}, TPOT {bound(snapshot.slo_tpot_s)}"
    if (phase := _slow_phase(snapshot)) is not None:
        missed = share(phase.over / phase.requests)
        head.append(_line(f"{missed} of {phase.requests} missed the objective ({objective})", "dim"))
    else:
        head.append(_line(f"objective: {objective}", "dim"))
    if snapshot.state in _PHASES or snapshot.state is LiveState.FAILING:
        head.append(_line(f"Find the cause: `{choices.diagnose}`"))
    return [*head, Text("")]


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _phases(snapshot: LiveSnapshot, width: int) -> list[Text]:
    """A line for each phase with its quantiles and a spark for each second, and its parts."""
    shown = max(10, min(60, width - 36))
    lines = []
    for name, phase, values, objective_s in (
        ("TTFT", snapshot.start, [second.ttft_s for second in snapshot.history], snapshot.slo_ttft_s),
        ("TPOT", snapshot.stream, [second.tpot_s for second in snapshot.history], snapshot.slo_tpot_s),
    ):
        if phase is None:
            lines.append(Text(f"{name}  {NONE}"))
            continue
        line = Text.assemble((f"{name}  ", "bold"))
        for label, seconds in (("p50", phase.p50_s), ("p90", phase.p90_s)):
            style = "yellow" if seconds > objective_s else ""
            reading = f"{'≥ ' if phase.at_least else ''}{duration(seconds)}"
            line.append(f"{label} ").append(f"{reading:<10}", style=style)
        lines.append(line.append(sparkline(values[-shown:]), style="cyan"))
        if phase.parts:
            lines.append(Text(f"      {_parts(phase, width - 6)}", style="dim"))
    return lines


def _parts(phase: LivePhase, width: int) -> str:
    """The parts of the mean, largest first, as many as fit."""
    line = f"mean {duration(phase.mean_s)}: "
    for place, entry in enumerate(sorted(phase.parts, key=lambda entry: -entry.seconds)):
        comma = ", " if place else ""
        part = f"{comma}{entry.part} {duration(entry.seconds)} {entry.seconds / phase.mean_s:.0%}"
        if entry.seconds < LEAST_SHARE * phase.mean_s or len(line) + len(part) > width:
            break
        line += part
    return line


def sparkline(values: Sequence[float | None]) -> str:
    """One character a second, from zero to the largest; a second without a value is a space."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    if top <= 0:
        return ""
    places = len(_BARS) - 1
    return "".join(" " if value is None else _BARS[round(value / top * places)] for value in values)


def _traffic(snapshot: LiveSnapshot) -> Text:
    facts = []
    if snapshot.requests_per_s is not None:
        facts.append(f"{number(snapshot.requests_per_s)} req/s")
    if snapshot.tokens_per_s is not None:
        facts.append(f"{number(snapshot.tokens_per_s)} tokens/s")
    facts.append(f"{snapshot.open_requests} open")
    if snapshot.waiting:
        queued = sorted(
            (tenant for tenant in snapshot.tenants if tenant.waiting), key=lambda tenant: -tenant.waiting
        )
        by = ", ".join(f"{tenant.tenant} {tenant.waiting}" for tenant in queued[:4])
        facts.append(f"{snapshot.waiting} queued{f' ({by})' if by else ''}")
    if snapshot.still:
        facts.append(f"{snapshot.still} standing still")
    if snapshot.failed:
        by = ", ".join(f"{failure.reason} {failure.requests}" for failure in snapshot.failures)
        facts.append(f"{snapshot.failed} failed{f' ({by})' if by else ''}")
    return _line("  ".join(facts))


def _chosen_engines(snapshot: LiveSnapshot, choices: LiveChoices) -> list[LiveEngine]:
    keys: dict[str, Callable[[LiveEngine], float]] = {
        "ttft": lambda engine: engine.ttft_s or 0.0,
        "tpot": lambda engine: engine.tpot_s or 0.0,
        "waiting": lambda engine: engine.waiting or 0.0,
    }
    fit = [engine for engine in snapshot.engines if _fits(choices, engine.name, engine.health)]
    by = keys.get(choices.sort)
    return sorted(
        fit, key=lambda engine: (engine.health == "up", 0.0 if by is None else -by(engine), engine.name)
    )


def _table(*columns: str, words: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold dim")
    for place, column in enumerate(columns):
        table.add_column(
            column, justify="left" if place < words else "right", no_wrap=True, overflow="ellipsis"
        )
    return table


def _engine_table(engines: Sequence[LiveEngine], snapshot: LiveSnapshot) -> Table:
    heads = ("engine", "state", "running", "waiting", "KV", "prefix hits", "step", "TTFT", "TPOT")
    table = _table(*heads, words=2)
    for engine in engines:
        up = engine.health == "up"
        old = engine.read_unix_s is not None and snapshot.at_unix_s - engine.read_unix_s > OLD_READING_S
        running = engine.open_requests if engine.running is None else engine.running
        table.add_row(
            engine.name,
            Text(HEALTH_WORDS.get(engine.health, engine.health), style="green" if up else "red"),
            count(running),
            count(engine.waiting),
            Text(share(engine.kv_usage), style="yellow" if (engine.kv_usage or 0.0) > 0.9 else ""),
            share(engine.prefix_hits),
            duration(engine.step_s),
            duration(engine.ttft_s),
            duration(engine.tpot_s),
            style="dim" if old else "",
        )
    return table


def _request_table(requests: Sequence[LiveRequest], choices: LiveChoices) -> Table:
    table = _table("request", "state", "tenant", "engine", "age", "TTFT", "TPOT", words=4)
    for place, request in enumerate(requests):
        style = "yellow" if request.status is RequestStatus.STANDS_STILL else ""
        table.add_row(
            short_id(request.request_id),
            request.status.value,
            request.tenant[:12],
            request.engine[:20] or NONE,
            *map(duration, (request.age_s, request.ttft_s, request.tpot_s)),
            style="reverse" if place == choices.selected else style,
        )
    return table


def _still_lines(requests: Sequence[LiveRequest]) -> list[Text]:
    """What holds the streams that stand still."""
    still = [request for request in requests if request.status is RequestStatus.STANDS_STILL]
    return [
        _line(
            f"{short_id(request.request_id)} silent for {duration(request.silent_s)}, "
            f"held by: {request.held_by}",
            "yellow",
        )
        for request in still[:MOST_STILL]
    ]

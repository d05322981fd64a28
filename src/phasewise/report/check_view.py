"""A check as text: engines, pairs with their proof, and problems with their fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from phasewise.core.units import NONE, counted, duration, size
from phasewise.core.worker import Role
from phasewise.fleet.check.facts import EngineFacts, FleetFacts, TrialFacts
from phasewise.fleet.check.judgement import CheckFinding, CheckResult
from phasewise.report.console import aligned

ROLE_STYLES = {Role.PREFILL: "blue", Role.DECODE: "green", Role.MIXED: "default"}
"""The colours of the phases, as in reports and on the dashboard."""


def lines_of(result: CheckResult) -> Iterator[Text]:
    """The whole result, line by line; never truncated, so that it can be copied at any width."""
    if result.ran and result.facts.engines:
        yield from _engines(result.facts.engines)
    if result.facts.trials:
        yield Text()
        yield from _pairs(result.facts)
    if result.facts.trials or result.findings:
        yield Text()
    for finding in result.findings:
        yield from _finding(finding)
    yield Text(_summary(result), style="bold green" if result.ok else "bold red")


def _engines(engines: Sequence[EngineFacts]) -> Iterator[Text]:
    heads = ("engine", "role", "state", "model", "block", "KV type", "connector")
    rows = [
        (
            engine.name,
            str(engine.role),
            "ready" if engine.ready else "not ready",
            ", ".join(engine.models) or "-",
            _or_dash(engine.block_tokens),
            _or_dash(engine.cache_dtype),
            {True: "yes", False: "no", None: "-"}[engine.has_connector],
        )
        for engine in engines
    ]
    yield from aligned(heads, rows, [ROLE_STYLES[engine.role] for engine in engines])


def _pairs(facts: FleetFacts) -> Iterator[Text]:
    heads = ("pair", "KV moved", "computed again", "KV transfer", "size", "speed", "text")
    rows = [_pair(trial) for trial in facts.trials]
    styles = ["default" if trial.proven else "red" for trial in facts.trials]
    yield from aligned(heads, rows, styles)


def _pair(trial: TrialFacts) -> tuple[str, ...]:
    whole = "?" if trial.prompt_tokens is None else f"{trial.prompt_tokens - trial.cached_tokens}"
    moved = "-" if trial.moved_tokens is None else f"{trial.moved_tokens:g} of {whole} tokens"
    moved = moved if trial.ended else "not tried"
    again = "-" if trial.computed_tokens is None else f"{trial.computed_tokens:g} tokens"
    speed = NONE if trial.bytes_per_s is None else f"{size(trial.bytes_per_s)}/s"
    moved_bytes = size(trial.moved_bytes or None)
    took = duration(trial.kv_transfer_s)
    text = {True: "equal", False: "differs", None: "-"}[trial.same_text]
    return (f"{trial.prefill} -> {trial.decode}", moved, again, took, moved_bytes, speed, text)


def _finding(finding: CheckFinding) -> Iterator[Text]:
    kind, style = ("warning", "yellow") if finding.is_warning else ("wrong", "red")
    yield Text.assemble((f"{kind}: ", f"bold {style}"), finding.words, f" ({finding.mistake})")
    yield Text.assemble(("  fix: ", "bold"), finding.fix)


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


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)

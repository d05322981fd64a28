"""Chooses fixes for each cause, with values from the summary, and levers that would not help.

It never suggests a setting that is in use already.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from phasewise.diagnosis.advice import around as advice_around
from phasewise.diagnosis.advice import start as advice_start
from phasewise.diagnosis.advice import stream as advice_stream
from phasewise.diagnosis.advice.fix import Advice, Figure, Fix
from phasewise.diagnosis.advice.levers import AvailableLevers
from phasewise.diagnosis.advice.start import Remedy
from phasewise.diagnosis.analysis.window_summary import WindowSummary
from phasewise.diagnosis.finding import Cause, Finding, Phase
from phasewise.engines.known import USUAL, engine_named
from phasewise.engines.port import Ability, Engine

REMEDIES: dict[Cause, Remedy] = advice_start.REMEDIES | advice_stream.REMEDIES | advice_around.REMEDIES
USELESS: dict[Cause, tuple[str, ...]] = advice_start.USELESS | advice_stream.USELESS | advice_around.USELESS

FREE_TO_TRY = frozenset({Cause.PREFIX_CACHE_OFF, Cause.PREFIX_SALTED})

VERIFY_FIRST = "phasewise compare FLEET.yaml --fix --trace window.jsonl (from --save-traffic)"
"""A fix is verified under the observed load, which `--save-traffic window.jsonl` saves."""
VERIFY_OTHER = "phasewise compare FLEET.yaml --set LEVER=VALUE"


def advise(finding: Finding, summary: WindowSummary) -> Advice:
    """The advice for a finding, without settings that are in use already.

    A rival that may be the cause instead has its fixes too. Those of prompts that repeat each other come
    first: they cost almost nothing and show whether it was that.
    """
    causes = [finding.cause] if finding.rival is None else [finding.cause, finding.rival]
    if finding.rival in FREE_TO_TRY:
        causes.reverse()
    levers = AvailableLevers(summary)
    engine = _kind(summary)
    remedies = (remedy for cause in causes for remedy in REMEDIES[cause](levers))
    found = [fix for remedy in remedies if (fix := _with_flag(remedy, engine)) is not None]
    fixes = list({fix.what: fix for fix in found}.values())
    useless = USELESS[finding.cause] + advice_start.also_useless(finding.cause, summary)
    first = VERIFY_FIRST if Ability.BE_VERIFIED in engine.CAN else VERIFY_OTHER
    return Advice(_with_commands([_aimed(fix, finding) for fix in fixes], first), useless)


def _kind(summary: WindowSummary) -> Engine:
    """The kind of the engine that served most requests."""
    busiest = max(summary.engines, key=lambda engine: engine.requests, default=None)
    return engine_named(None if busiest is None else busiest.kind)


EASED_BY_AN_ENGINE = frozenset(
    {
        Cause.OVERLOAD,
        Cause.BURSTS,
        Cause.BATCH_CAP_LOW,
        Cause.BATCH_CAP_HIGH,
        Cause.KV_EXHAUSTED,
        Cause.CHUNKS_STALL,
        Cause.FRONT_END_BUSY,
        Cause.GATEWAY,
    }
)
"""What is less of a problem if another engine takes a part of the requests."""


def engines_back_first(advice: Advice, cause: Cause, summary: WindowSummary) -> Advice:
    """The same advice; if another engine would help, those that the gateway does not use come first."""
    if cause not in EASED_BY_AN_ENGINE:
        return advice
    back = (
        advice_around.bring_back(engine.name, engine.out_of_service)
        for engine in summary.engines
        if engine.out_of_service
    )
    return replace(advice, fixes=(*back, *advice.fixes))


def _with_flag(fix: Fix | None, engine: Engine) -> Fix | None:
    """The fix with its flag; None if the engine has no such setting."""
    change = None if fix is None else fix.setting or fix.lever
    if fix is None or (fix.needs is not None and fix.needs not in engine.CAN):
        return None
    if change is None:
        return fix
    if change.name not in engine.FLAGS:
        return fix if fix.setting is None and change.name not in USUAL.FLAGS else None
    flag = engine.FLAGS[change.name]
    if change.times is not None:
        return replace(fix, engine_flag=f"{flag}, {change.times:g} times the current value")
    if change.value is None:
        return replace(fix, engine_flag=f"remove {flag}")
    words = engine.flags(change.name, change.fleet_value) or ()
    fleet_line = fix.fleet_line or f"pools: [{{engine_flags: {json.dumps(words)}}}]"
    return replace(fix, engine_flag=shlex.join(words), fleet_line=fleet_line)


def _aimed(fix: Fix, finding: Finding) -> Fix:
    """Some causes slow down both phases: a fix aims at a figure of the phase that lost time."""
    if finding.phase is Phase.STREAM and fix.aims_at in {Figure.TTFT_P50, Figure.TTFT_P90}:
        return replace(fix, aims_at=Figure.TPOT_P50)
    if finding.phase is Phase.START and fix.aims_at in {Figure.TPOT_P50, Figure.ITL_P99}:
        return replace(fix, aims_at=Figure.TTFT_P50)
    return fix


def _with_commands(fixes: list[Fix], command: str) -> tuple[Fix, ...]:
    """Add the command that verifies each change of a fleet file, the first one's to the first."""
    first = next((fix for fix in fixes if fix.lever is not None), None)
    return tuple(
        fix if fix.lever is None else replace(fix, verify=command if fix is first else VERIFY_OTHER)
        for fix in fixes
    )

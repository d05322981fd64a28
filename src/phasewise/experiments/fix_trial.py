"""Tests a fix: diagnose the fleet under load, record a prediction, change a copy, compare.

The prediction is in the ledger before anything is measured.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from phasewise.benchmark.compare.arms import Arm
from phasewise.benchmark.compare.compare import ComparePlan, Measure, compare_arms
from phasewise.benchmark.compare.ledger import (
    Entry,
    LedgerFile,
    MeasuredOutcome,
    Prediction,
    PredictionCheck,
    judge_prediction,
    measured_ratio,
)
from phasewise.benchmark.compare.verdict import METRICS, ComparisonResult
from phasewise.core.errors import PhasewiseError
from phasewise.diagnosis.advice.fix import Figure, Fix
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Verdict
from phasewise.experiments.fleet_change import FleetChange, changed_fleet
from phasewise.fleet.config import FleetConfig


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A verdict on a load, whose advice has predicted effects."""

    verdict: Verdict
    evidence: Evidence
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """The machine, model and versions of a prediction."""

    machine: str
    model: str
    engine_version: str
    phasewise_version: str


@dataclass(frozen=True, slots=True)
class FixTrialPlan:
    """Which fleet, and how it is compared with its changed copy."""

    file: Path
    fleet: FleetConfig
    setting: Setting
    compare: ComparePlan
    on_cpu: bool = True


@dataclass(frozen=True, slots=True)
class FixTrialTools:
    """The callbacks of a trial.

    `arm` creates one side of the comparison from a fleet file; `diagnose` puts the load on an address and
    returns the verdict; `show` shows the verdict before the long part begins, and `announce` the prediction.
    `reject` raises if a changed fleet does not fit this machine.
    """

    arm: Callable[[Path, str], Arm]
    diagnose: Callable[[str], Awaitable[Diagnosed]]
    measure: Measure
    ledger: LedgerFile
    clock: Callable[[], float]
    show: Callable[[Diagnosed], None]
    announce: Callable[[Fix, FleetChange, Sequence[Prediction]], None]
    say: Callable[[str], None]
    forgives: Callable[[], bool]
    reject: Callable[[FleetConfig], None] = lambda _fleet: None


@dataclass(frozen=True, slots=True)
class FixTrial:
    """The result. `nothing` says why nothing was measured: there was no fix to try, or the fix could not be
    tried to the end."""

    diagnosed: Diagnosed
    fix: Fix | None = None
    change: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    comparison: ComparisonResult | None = None
    nothing: str = ""

    @property
    def cut_short(self) -> bool:
        """Whether the user interrupted it."""
        return self.diagnosed.cut_short or (self.comparison is not None and self.comparison.cut_short)

    @property
    def trusted(self) -> bool:
        """Whether the measurement is complete and can be trusted."""
        if self.fix is None:
            return True
        return not self.nothing and self.comparison is not None and self.comparison.trusted


async def try_top_fix(plan: FixTrialPlan, tools: FixTrialTools) -> FixTrial:
    """Diagnose the fleet, then try the first fix of the top finding that changes a lever and can be applied.

    Once there is a verdict it is returned, whatever happens to the fix.
    """
    async with tools.arm(plan.file, "compare-a").serving() as url:
        diagnosed = await tools.diagnose(url)
    tools.show(diagnosed)
    chosen = _choose(diagnosed, plan, tools)
    if isinstance(chosen, str):
        return FixTrial(diagnosed, nothing=chosen)
    fix, change = chosen
    predictions = predictions_of(diagnosed.verdict, fix, plan.setting, tools.clock())
    try:
        for prediction in predictions:
            tools.ledger.add(prediction)
    except PhasewiseError as error:
        # A prediction counts only if it was recorded before.
        return FixTrial(diagnosed, nothing=str(error))
    tools.announce(fix, change, predictions)
    result, broken = None, ""
    try:
        result = await _compare(plan, change, predictions, tools)
        entries = [_entry(prediction, result, tools.clock()) for prediction in predictions]
    except PhasewiseError as error:
        # Its hint may name the copy, which is deleted by now.
        broken = error.message
        entries = []
        for prediction in predictions:
            held = judge_prediction(prediction.ratio, None, None)
            outcome = MeasuredOutcome(prediction.id, tools.clock(), held, reason=broken)
            entries.append(Entry(prediction, outcome))
    try:
        for entry in entries:
            if entry.outcome is not None:
                tools.ledger.add(entry.outcome)
    except PhasewiseError as error:
        broken = broken or error.message
    return FixTrial(diagnosed, fix, change.lines, tuple(entries), result, broken)


def _choose(diagnosed: Diagnosed, plan: FixTrialPlan, tools: FixTrialTools) -> tuple[Fix, FleetChange] | str:
    """The first fix that can be tried on a copy of the fleet file, or why there is none."""
    verdict = diagnosed.verdict
    if diagnosed.cut_short:
        return "stopped before the fix was tried"
    if verdict.top is None:
        return f"the verdict is {_words(verdict.ruling)}: no cause with a fix was found"
    in_the_way: list[str] = []
    for fix in verdict.advice.fixes if verdict.advice is not None else ():
        if fix.lever is None:
            continue
        try:
            change = changed_fleet(plan.fleet, fix.lever, on_cpu=plan.on_cpu)
            tools.reject(change.fleet)
        except PhasewiseError as error:
            in_the_way.append(f"{fix.what}: {error}")
        else:
            return fix, change
    if in_the_way:
        return f"no fix can be tried here. {'; '.join(in_the_way)}"
    return f"no change to a fleet file helps against {_words(verdict.top.cause)}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def predictions_of(verdict: Verdict, fix: Fix, setting: Setting, now_unix_s: float) -> tuple[Prediction, ...]:
    """One prediction per figure that the fix is expected to move, the one it aims at first."""
    run = secrets.token_hex(4)
    figures = [fix.aims_at]
    if fix.effect is not None:
        figures += [each.figure for each in fix.effect.changes if each.figure is not fix.aims_at]
    return tuple(_prediction(run, figure, verdict, fix, setting, now_unix_s) for figure in figures)


def _prediction(
    run: str, figure: Figure, verdict: Verdict, fix: Fix, setting: Setting, now_unix_s: float
) -> Prediction:
    expected = fix.effect.of(figure) if fix.effect is not None else None
    lever = fix.lever
    return Prediction(
        id=f"{run}-{figure}",
        run=run,
        at_unix_s=now_unix_s,
        **asdict(setting),
        cause=str(verdict.top.cause) if verdict.top is not None else "",
        fix=fix.what,
        lever=lever.name if lever is not None else "",
        value=str(lever.value if lever.times is None else f"x {lever.times:g}") if lever is not None else "",
        metric=str(figure),
        aim=figure is fix.aims_at,
        ratio=None if expected is None else expected.interval,
        expected=None if expected is None else expected.ratio,
        unpredictable="" if expected is not None else fix.unpredictable or "there was no prediction for it",
    )


async def _compare(
    plan: FixTrialPlan, change: FleetChange, predictions: Sequence[Prediction], tools: FixTrialTools
) -> ComparisonResult:
    # Intervals widen with the number of metrics, so only predicted ones are compared.
    named = {prediction.metric for prediction in predictions}
    metrics = tuple(metric for metric in METRICS if metric.name in named)
    compare = replace(plan.compare, rules=replace(plan.compare.rules, metrics=metrics))
    with tempfile.TemporaryDirectory(prefix="phasewise-compare-") as scratch:
        changed = change.write(Path(scratch), f"{plan.file.stem}-changed")
        a, b = tools.arm(plan.file, "compare-a"), tools.arm(changed, "compare-b")
        return await compare_arms(a, b, compare, tools.measure, tools.say, tools.forgives)


def _entry(prediction: Prediction, result: ComparisonResult, now_unix_s: float) -> Entry:
    """The prediction with its outcome; still open if the comparison was aborted."""
    found = next(each for each in result.comparisons if each.metric.name == prediction.metric)
    ratio, interval = measured_ratio(found)
    if ratio is None and result.cut_short:
        return Entry(prediction)
    held = judge_prediction(prediction.ratio, ratio, interval)
    reason = found.reason
    if not result.trusted and held is not PredictionCheck.UNPREDICTED:
        held, reason = (
            PredictionCheck.INCONCLUSIVE,
            result.gave_up or reason or "the fleet differs from itself",
        )
    return Entry(
        prediction, MeasuredOutcome(prediction.id, now_unix_s, held, ratio, interval, result.pairs, reason)
    )

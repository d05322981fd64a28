"""The published claims that a validation can test, each judged from its figures. Pure.

Every claim can fail: its bound is what the documentation says, not what this machine happens to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, log, sqrt

from phasewise.core.errors import ConfigError
from phasewise.core.units import duration, share
from phasewise.experiments.levers.catalogue import STALLS, TTFT, Sign
from phasewise.experiments.levers.findings import (
    Agreement,
    agreement,
    change_in_words,
    interval_in_words,
    value_in_words,
)
from phasewise.experiments.validate.plan import Step
from phasewise.experiments.validate.record import (
    ClaimResult,
    FaultFigures,
    Measured,
    Outcome,
    StepResult,
    ValidationReport,
    read_report,
)

AGREES_WITHIN = 0.05
"""Two tools that differ by less agree, whatever the noise."""
TOO_NOISY = 0.25
"""Where a tool differs from itself by more, an agreement within the noise says nothing."""
HELD_OUT_ERROR = 0.20
MOST_TTFT_SHARE, MOST_TTFT_MS = 0.05, 10.0
"""Of TTFT, the larger of the two may be unexplained: the way between processes takes milliseconds, however
short the prompt is."""
MOST_TPOT_SHARE = 0.05
SLOW_ABOVE = 0.15
"""Traffic is slow if more of its requests than this miss the objective."""
BUSY_ABOVE = 0.15
"""If others took more of the processors, a figure says little of the claim: nothing is refuted by it."""

Finding = tuple[Outcome, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, its figure and the page that publishes it, and how it is judged; None without figures."""

    name: str
    step: Step
    sentence: str
    published: str
    judge: Callable[[Measured], Finding | None]


def judge_claims(measured: Measured, steps: Sequence[StepResult]) -> tuple[ClaimResult, ...]:
    """Every claim; one whose step was not done is not tried, for that step's reason."""
    done = {it.step: it for it in steps}
    left_out = StepResult(step="left_out", done=False, why="it was left out of this run")
    results = []
    for claim in CLAIMS:
        step = done.get(claim.step.value, left_out)
        outcome, found = claim.judge(measured) or (Outcome.NOT_TRIED, step.why)
        if outcome is Outcome.FAILS and step.taken_share > BUSY_ABOVE:
            busy = f"others took {share(step.taken_share)} of the processors during it"
            outcome, found = Outcome.INCONCLUSIVE, f"{found}; {busy}"
        results.append(
            ClaimResult(
                claim=claim.name,
                sentence=claim.sentence,
                published=claim.published,
                outcome=outcome,
                found=found,
            )
        )
    return tuple(results)


def read_judged(data: bytes, name: str) -> ValidationReport:
    """The report in a document from anywhere, if its claims follow from its figures; else ConfigError."""
    report = read_report(data, name)
    said = sorted((it.claim, it.outcome) for it in report.claims)
    judged = sorted((it.claim, it.outcome) for it in judge_claims(report.measured, report.steps))
    if said != judged:
        odd = sorted({claim for claim, _ in set(said) ^ set(judged)})
        raise ConfigError(
            f"{name}: its claims do not follow from its figures: {', '.join(odd) or 'one stands twice'}",
            hint="publish the report as it was written, by this version of phasewise",
        )
    return report


def _tools_agree(metric: str, measured: Measured) -> Finding | None:
    if (bench := measured.bench) is None or metric not in bench.ratio:
        return None
    off, noise = abs(log(bench.ratio[metric])), bench.noise[metric]
    words = (
        f"{duration(bench.phasewise_ms[metric] / 1000)} against {duration(bench.vllm_ms[metric] / 1000)}, "
        f"ratio {bench.ratio[metric]:.3f}; a tool differs from itself by {share(exp(noise) - 1)}"
    )
    if bench.void_runs:
        return Outcome.INCONCLUSIVE, f"{words}; the load generator was late in {bench.void_runs} runs"
    if off <= AGREES_WITHIN:
        return Outcome.HOLDS, words
    if noise > TOO_NOISY:
        return Outcome.INCONCLUSIVE, f"{words}: too noisy"
    # The mean of several ratios varies less than one of them.
    certain = max(noise, 2 * noise / sqrt(bench.runs_per_tool))
    return (Outcome.HOLDS if off <= certain else Outcome.FAILS), words


def _predicts(kind: str, measured: Measured) -> Finding | None:
    if (fit := measured.calibration) is None:
        return None
    error = fit.held_out_error.get(kind)
    if error is None:
        return Outcome.INCONCLUSIVE, f"too few {kind} steps of different sizes were seen"
    words = f"median error {error:.1%}, {fit.steps:,} steps by {fit.source}"
    return (Outcome.HOLDS if error <= HELD_OUT_ERROR else Outcome.FAILS), words


def _form_fits(measured: Measured) -> Finding | None:
    if (fit := measured.calibration) is None:
        return None
    words = f"{fit.cells_missed} of {fit.cells} kinds of step are missed"
    if fit.form_fits is None:
        return Outcome.INCONCLUSIVE, f"{words}, the others are too noisy or too few"
    return (Outcome.HOLDS if fit.form_fits else Outcome.FAILS), words


def _no_false_alarm(measured: Measured) -> Finding | None:
    if (run := measured.fault(Step.HEALTHY)) is None:
        return None
    words = _verdict_in_words(run)
    if run.said == run.expected:
        return Outcome.HOLDS, words
    if run.late_share > SLOW_ABOVE:
        return Outcome.INCONCLUSIVE, f"{words}: this machine was too busy for a healthy run"
    return Outcome.FAILS, words


def _little_unexplained(measured: Measured) -> Finding | None:
    if (run := measured.fault(Step.HEALTHY)) is None:
        return None
    ttft, ttft_ms, tpot = run.unexplained_ttft_share, run.unexplained_ttft_ms, run.unexplained_tpot_share
    if ttft is None or ttft_ms is None or tpot is None:
        return Outcome.NOT_TRIED, "the engine has no step record: `phasewise engine install --plugin-only`"
    words = f"{share(ttft)} of TTFT ({duration(ttft_ms / 1000)}), {share(tpot)} of the time per token"
    within = (ttft <= MOST_TTFT_SHARE or ttft_ms <= MOST_TTFT_MS) and tpot <= MOST_TPOT_SHARE
    return (Outcome.HOLDS if within else Outcome.FAILS), words


def _is_named(fault: Step, measured: Measured) -> Finding | None:
    if (run := measured.fault(fault)) is None:
        return None
    words = _verdict_in_words(run)
    if run.said == run.expected:
        return Outcome.HOLDS, words
    if run.late_share <= SLOW_ABOVE:
        return Outcome.INCONCLUSIVE, f"{words}: the fault slowed too few of them"
    return Outcome.FAILS, words


def _verdict_in_words(run: FaultFigures) -> str:
    confidence = f" ({run.confidence})" if run.confidence else ""
    return f"called {run.said}{confidence}; {share(run.late_share)} of {run.requests} requests were slow"


def _lowers(lever: Step, metric: str, measured: Measured) -> Finding | None:
    if (figures := measured.lever(lever)) is None:
        return None
    effect = next((it for it in figures.effects if it.metric == metric), None)
    if effect is None or effect.off is None:
        return Outcome.INCONCLUSIVE, (effect.reason if effect else "") or "too few readings"
    outcome = {
        Agreement.AGREES: Outcome.HOLDS,
        Agreement.DIFFERS: Outcome.FAILS,
        Agreement.OPEN: Outcome.INCONCLUSIVE,
        Agreement.MISSING: Outcome.INCONCLUSIVE,
    }[agreement(effect, Sign.LOWER)]
    values = f"{value_in_words(effect, effect.off)} -> {value_in_words(effect, effect.on)}"
    interval = f" ({interval})" if (interval := interval_in_words(effect)) else ""
    return outcome, f"{values}, {change_in_words(effect)}{interval}"


def _fault(fault: Step, what: str) -> Claim:
    return Claim(
        f"names_{fault}",
        fault,
        f"The verdict names {what}.",
        "33 of 34 planted runs right (How often the verdict is right)",
        partial(_is_named, fault),
    )


CLAIMS = (
    *(
        Claim(
            f"{metric}_agrees",
            Step.BENCH,
            f"`phasewise bench` and `vllm bench serve` measure the same median {metric.upper()}: they differ "
            "by at most 5%, or by no more than a tool differs from itself.",
            published,
            partial(_tools_agree, metric),
        )
        for metric, published in (
            ("ttft", "0.6%, noise 17% (What is measured)"),
            ("tpot", "2.4%, noise 13% (What is measured)"),
        )
    ),
    *(
        Claim(
            f"predicts_{kind}",
            Step.CALIBRATION,
            f"Fitted step costs predict {kind} steps of sizes that were left out of the fit, with a median "
            "error of at most 20%.",
            published,
            partial(_predicts, kind),
        )
        for kind, published in (
            ("decode", "6.6% after 14 minutes, 7.6% to 18% after 2 (The cost of a step)"),
            ("prefill", "8.5% after 14 minutes, 11% to 14% after 2 (The cost of a step)"),
        )
    ),
    Claim(
        "form_fits",
        Step.CALIBRATION,
        "A step takes the sum of six parts: the fit's form misses hardly any kind of step.",
        "the same form accepted, tiles and cliffs rejected (The cost of a step)",
        _form_fits,
    ),
    Claim(
        "no_false_alarm",
        Step.HEALTHY,
        "Traffic that the engine serves with ease is called healthy.",
        "no false alarm in 6 healthy runs (How often the verdict is right)",
        _no_false_alarm,
    ),
    Claim(
        "little_unexplained",
        Step.HEALTHY,
        "In a healthy run at most 5% or 10 ms of TTFT, and 5% of the time per token, are unexplained.",
        "at most 5.0% of TTFT (6.4 ms), 0.05% of the time per token (What is measured)",
        _little_unexplained,
    ),
    _fault(Step.LONG_PROMPTS, "prompts that are too long for the objective"),
    _fault(Step.PREFIX_CACHE_OFF, "a prefix cache that is off while prompts begin alike"),
    _fault(Step.BATCH_CAP, "a batch cap that keeps requests waiting"),
    Claim(
        "prefix_cache_lowers_ttft",
        Step.PREFIX_CACHE,
        "The prefix cache lowers TTFT of prompts that share most of their beginning.",
        "-77%, -91 to -38% (What each lever does)",
        partial(_lowers, Step.PREFIX_CACHE, TTFT),
    ),
    Claim(
        "chunks_shorten_gaps",
        Step.CHUNK_SIZE,
        "Prefill chunks of 512 tokens shorten the worst gaps of streams while prompts arrive.",
        "ITL p99 -46%, -67 to -14% (What each lever does)",
        partial(_lowers, Step.CHUNK_SIZE, STALLS),
    ),
)

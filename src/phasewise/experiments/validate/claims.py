"""The published claims that a validation tries, each judged from the figures of one step. Pure.

Every claim can fail: its bound is what the documentation says, not what this machine happens to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.units import duration, share
from phasewise.experiments.validate.report import (
    ClaimResult,
    Outcome,
    StepResult,
    ValidationReport,
    read_report,
)

HELD_OUT_ERROR = 0.20
MOST_UNEXPLAINED, MOST_UNEXPLAINED_MS = 0.05, 10.0
"""The way between processes takes milliseconds of TTFT, however short the prompt is."""
SLOW_ABOVE = 0.15
"""Traffic is slow if more of its requests than this miss the objective."""

Figures = dict[str, Any]
Judgement = tuple[Outcome, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, the step whose figures judge it, and the published figure with its page."""

    name: str
    step: str
    sentence: str
    published: str
    judge: Callable[[Figures], Judgement]


def judge_claims(steps: Sequence[StepResult]) -> tuple[ClaimResult, ...]:
    """Every claim; one whose step was not done is not tried, for that step's reason."""
    done = {result.step: result for result in steps}
    results = []
    for claim in CLAIMS:
        step = done.get(claim.step) or StepResult(step=claim.step, why="it was left out of this run")
        outcome, found = claim.judge(step.figures) if step.figures else (Outcome.NOT_TRIED, step.why)
        texts = {"sentence": claim.sentence, "published": claim.published, "found": found}
        results.append(ClaimResult(claim=claim.name, outcome=outcome, **texts))
    return tuple(results)


def read_judged(data: bytes, name: str) -> ValidationReport:
    """The report in a document from anywhere, if its claims follow from its figures; else ConfigError."""
    report = read_report(data, name)
    try:
        follows = report.claims == judge_claims(report.steps)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name}: its figures are incomplete ({error})") from error
    if not follows:
        raise ConfigError(
            f"{name}: its claims do not follow from its figures",
            hint="publish the report as it was written, by this version of phasewise",
        )
    return report


def _predicts(kind: str, fit: Figures) -> Judgement:
    error = fit[f"{kind}_error"]
    if error is None:
        return Outcome.INCONCLUSIVE, f"too few {kind} steps of different sizes were seen"
    words = f"median error {error:.1%}, {fit['steps']:,} steps by {fit['source']}"
    return (Outcome.HOLDS if error <= HELD_OUT_ERROR else Outcome.FAILS), words


def _form_fits(fit: Figures) -> Judgement:
    words = f"{fit['cells_missed']} of {fit['cells']} kinds of step are missed"
    outcomes = {"yes": Outcome.HOLDS, "no": Outcome.FAILS, "open": Outcome.INCONCLUSIVE}
    return outcomes[fit["form_fits"]], words


def _little_unexplained(run: Figures) -> Judgement:
    ttft, ttft_ms, tpot = (run[f"unexplained_{name}"] for name in ("ttft_share", "ttft_ms", "tpot_share"))
    if None in {ttft, ttft_ms, tpot}:
        return Outcome.NOT_TRIED, "the engine has no step record: `phasewise engine install --plugin-only`"
    words = f"{share(ttft)} of TTFT ({duration(ttft_ms / 1000)}), {share(tpot)} of the time per token"
    little = ttft <= MOST_UNEXPLAINED or ttft_ms <= MOST_UNEXPLAINED_MS
    return (Outcome.HOLDS if little and tpot <= MOST_UNEXPLAINED else Outcome.FAILS), words


def _is_named(run: Figures) -> Judgement:
    confidence = f" ({run['confidence']})" if run["confidence"] else ""
    slow = f"{share(run['late_share'])} of {run['requests']} requests were slow"
    words = f"called {run['said']}{confidence}; {slow}"
    if run["said"] == run["expected"]:
        return Outcome.HOLDS, words
    # A fault has to slow its requests, and a healthy run must not be slow.
    if (run["late_share"] > SLOW_ABOVE) == (run["expected"] == "healthy"):
        return Outcome.INCONCLUSIVE, f"{words}: the machine did not play the traffic as planned"
    return Outcome.FAILS, words


def _lowers(lever: Figures) -> Judgement:
    change, low, high = lever["change"], lever["low"], lever["high"]
    if low is None or high is None:
        return Outcome.INCONCLUSIVE, lever["reason"] or "too few readings"
    a, b = duration(lever["a_s"]), duration(lever["b_s"])
    words = f"{a} -> {b}, {change:+.0%} ({100 * low:+.0f} to {100 * high:+.0f}%)"
    return Outcome.HOLDS if high < 0 else Outcome.FAILS if low > 0 else Outcome.INCONCLUSIVE, words


RIGHT = "named with high confidence (Validated)"
PREDICTS = (
    "Fitted step costs predict {} steps of sizes that were left out of the fit, with a median error of at "
    "most 20%."
)
CLAIMS = tuple(
    Claim(*row)
    for row in (
        ("predicts_decode", "calibration", PREDICTS.format("decode"),
         "6.6% after 14 minutes, 7.6% to 18% after 2 (The cost of a step)", partial(_predicts, "decode")),
        ("predicts_prefill", "calibration", PREDICTS.format("prefill"),
         "8.5% after 14 minutes, 11% to 14% after 2 (The cost of a step)", partial(_predicts, "prefill")),
        ("form_fits", "calibration", "A step takes the sum of six parts: the fit's form misses hardly any "
         "kind of step.",
         "the same form accepted, tiles and cliffs rejected (The cost of a step)", _form_fits),
        ("no_false_alarm", "healthy", "Traffic that the engine serves with ease is called healthy.",
         "called healthy (Validated)", _is_named),
        ("little_unexplained", "healthy", "In a healthy run at most 5% or 10 ms of TTFT, and 5% of the time "
         "per token, are unexplained.",
         "1% of TTFT (9.03 ms), 0.1% of the time per token (Validated)",
         _little_unexplained),
        ("names_long_prompts", "long_prompts",
         "The verdict names prompts that are too long for the objective.", RIGHT, _is_named),
        ("names_prefix_cache_off", "prefix_cache_off",
         "The verdict names a prefix cache that is off while prompts begin alike.", RIGHT, _is_named),
        ("names_batch_cap_too_low", "batch_cap_too_low",
         "The verdict names a batch cap that keeps requests waiting.", RIGHT, _is_named),
        ("prefix_cache_lowers_ttft", "prefix_cache",
         "The prefix cache lowers TTFT of prompts that share most of their beginning.",
         "-83%, -88 to -77% (Validated)", _lowers),
        ("chunks_shorten_gaps", "chunk_size",
         "Prefill chunks of 512 tokens shorten the worst gaps of streams while prompts arrive.",
         "ITL p99 -47%, -68 to -12% (Validated)", _lowers),
    )
)  # fmt: skip

"""A validation's report: the published claims that it tries, each judged from the figures of one step.

Every claim can fail: its bound is what the documentation says, not what this machine happens to show.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, StringConstraints, ValidationError

from phasewise.core.errors import ConfigError
from phasewise.core.units import duration, share
from phasewise.fleet.config.gateway import Frozen

LARGEST_REPORT_BYTES = 256 * 1024
Line = Annotated[str, StringConstraints(max_length=600, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")]
"""A text on one line: reports come from other machines, and their texts end in tables."""
Key = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9_]+$")]
Facts = dict[Key, float | int | Line | None]
_ADDRESSES = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,30}://[^\s'\"<>)]+|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"
    r"|(?<![\w./~])~?(?:/[\w.@+~-]{1,255}){1,40}/?|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)(?::\d{1,5})?"
    r"|(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])"
    r"|\b[a-z][\w-]{0,62}(?:\.[\w-]{1,63}){0,8}:\d{2,5}\b",
    re.IGNORECASE,
)
"""Addresses and paths. Every repetition is bounded, so that no text takes long."""


class ClaimOutcome(StrEnum):
    """What was found of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCONCLUSIVE = "inconclusive"
    NOT_TRIED = "not tried"


class StepResult(Frozen):
    """A step with its figures; `why` says why it was not done."""

    step: Key
    why: Line = ""
    took_s: float = 0.0
    figures: Facts = Field(default_factory=dict)


class ClaimResult(Frozen):
    """A published claim and what was found of it here."""

    claim: Key
    sentence: Line
    published: Line
    outcome: ClaimOutcome
    found: Line


class ValidationReport(Frozen):
    """A whole report."""

    format: Literal["phasewise-validation"] = "phasewise-validation"
    v: Literal[2] = 2
    day: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$")]
    took_minutes: float
    interrupted: bool
    machine: Facts
    versions: Facts
    settings: Facts
    steps: tuple[StepResult, ...]
    claims: Annotated[tuple[ClaimResult, ...], Field(min_length=1)]

    def count(self, outcome: ClaimOutcome) -> int:
        return sum(claim.outcome is outcome for claim in self.claims)


def report_json(report: ValidationReport) -> bytes:
    """The document. Whatever its texts hold, no address and no path is written."""
    return orjson.dumps(_cleaned(report.model_dump(mode="json")), option=orjson.OPT_INDENT_2) + b"\n"


def read_report(data: bytes, name: str) -> ValidationReport:
    """The report in a document from anywhere; ConfigError says what is wrong with it."""
    try:
        if len(data) > LARGEST_REPORT_BYTES:
            raise ConfigError(f"{name} has {len(data):,} bytes: no validation report is this large")
        document = orjson.loads(data)
        if _cleaned(document) != document:
            raise ConfigError(
                f"{name} holds an address or a path", hint="publish the report as it was written"
            )
        return ValidationReport.model_validate_json(data, strict=True)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON ({error})", hint="give the report's .json file") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(
            f"{name} is no report of this version: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="publish the report as `phasewise engine validate` wrote it",
        ) from error


def without_names(text: str) -> str:
    """A text on one line without addresses, paths, and the names of this machine and its user."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0], getpass.getuser(), Path.home().name}
    text = _ADDRESSES.sub("(removed)", " ".join(text.split()))
    # Shorter names are parts of ordinary words.
    for name in sorted((name for name in names if len(name) > 2), key=len, reverse=True):
        text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "(removed)", text, flags=re.IGNORECASE)
    return text[:600]


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return _ADDRESSES.sub("(removed)", value)
    if isinstance(value, dict):
        return {key: _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


HELD_OUT_ERROR = 0.20
MOST_UNEXPLAINED, MOST_UNEXPLAINED_MS = 0.05, 10.0
"""More of TTFT may be unexplained if it is only this long: the way between processes takes milliseconds."""
SLOW_ABOVE = 0.15
"""Traffic is slow if more of its requests than this miss the objective."""

Figures = dict[str, Any]
Judgement = tuple[ClaimOutcome, str]


@dataclass(frozen=True, slots=True)
class ValidationClaim:
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
        outcome, found = claim.judge(step.figures) if step.figures else (ClaimOutcome.NOT_TRIED, step.why)
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
        return ClaimOutcome.INCONCLUSIVE, f"too few {kind} steps of different sizes were seen"
    words = f"median error {error:.1%}, {fit['steps']:,} steps by {fit['source']}"
    return (ClaimOutcome.HOLDS if error <= HELD_OUT_ERROR else ClaimOutcome.FAILS), words


def _form_fits(fit: Figures) -> Judgement:
    words = f"{fit['cells_missed']} of {fit['cells']} kinds of step are missed"
    outcomes = {"yes": ClaimOutcome.HOLDS, "no": ClaimOutcome.FAILS, "open": ClaimOutcome.INCONCLUSIVE}
    return outcomes[fit["form_fits"]], words


def _little_unexplained(run: Figures) -> Judgement:
    ttft, ttft_ms, tpot = (run[f"unexplained_{name}"] for name in ("ttft_share", "ttft_ms", "tpot_share"))
    if None in {ttft, ttft_ms, tpot}:
        return (
            ClaimOutcome.NOT_TRIED,
            "the engine has no step record: `phasewise engine install --plugin-only`",
        )
    words = f"{share(ttft)} of TTFT ({duration(ttft_ms / 1000)}), {share(tpot)} of the time per token"
    little = ttft <= MOST_UNEXPLAINED or ttft_ms <= MOST_UNEXPLAINED_MS
    return (ClaimOutcome.HOLDS if little and tpot <= MOST_UNEXPLAINED else ClaimOutcome.FAILS), words


def _is_named(run: Figures) -> Judgement:
    confidence = f" ({run['confidence']})" if run["confidence"] else ""
    slow = f"{share(run['late_share'])} of {run['requests']} requests were slow"
    words = f"called {run['said']}{confidence}; {slow}"
    if run["said"] == run["expected"]:
        return ClaimOutcome.HOLDS, words
    # A fault has to slow its requests, and a healthy run must not be slow.
    if (run["late_share"] > SLOW_ABOVE) == (run["expected"] == "healthy"):
        return ClaimOutcome.INCONCLUSIVE, f"{words}: the machine did not play the traffic as planned"
    return ClaimOutcome.FAILS, words


def _lowers(lever: Figures) -> Judgement:
    change, low, high = lever["change"], lever["low"], lever["high"]
    if low is None or high is None:
        return ClaimOutcome.INCONCLUSIVE, lever["reason"] or "too few readings"
    a, b = duration(lever["a_s"]), duration(lever["b_s"])
    words = f"{a} -> {b}, {change:+.0%} ({100 * low:+.0f} to {100 * high:+.0f}%)"
    return (
        ClaimOutcome.HOLDS if high < 0 else ClaimOutcome.FAILS if low > 0 else ClaimOutcome.INCONCLUSIVE,
        words,
    )


RIGHT = "named with high confidence (Validated)"
PREDICTS = (
    "Fitted step costs predict {} steps of sizes that were left out of the fit, with a median error of at "
    "most 20%."
)
CLAIMS = tuple(
    ValidationClaim(*row)
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

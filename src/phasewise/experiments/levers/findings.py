"""The measurements and what physics predicts, row by row, in the words that every output uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from phasewise.core.units import duration
from phasewise.experiments.levers.catalogue import (
    MARGIN,
    SHOWN,
    STALLS,
    THROUGHPUT,
    TPOT,
    TTFT,
    Case,
    Row,
    Sign,
)
from phasewise.experiments.levers.results import CaseResult, LeverEffect, Outputs, Results, RowResult
from phasewise.loadgen.statistics.comparison import MetricVerdict, Scale

LABELS = {TTFT: "TTFT", TPOT: "TPOT", STALLS: "worst gaps (ITL p99)", THROUGHPUT: "tokens/s"}
WORDS = {
    MetricVerdict.BETTER: "better",
    MetricVerdict.WORSE: "worse",
    MetricVerdict.EQUIVALENT: "no effect",
    MetricVerdict.INCONCLUSIVE: "inconclusive",
    MetricVerdict.UNKNOWN: "not measured",
}
PRICE_UNKNOWN = "hidden: its price in accuracy is unknown"


class Agreement(StrEnum):
    """How a row's result compares with its expectation."""

    AGREES = "as expected"
    DIFFERS = "not as expected"
    OPEN = "open"
    """Too noisy to decide: the interval includes what was expected, and other values too."""
    MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class LeverFinding:
    """One row of the table: a case, a workload, what was expected and what was measured.

    `missing` says why nothing was measured. With `kv_is_fixed` in bytes, lighter weights do not enlarge the
    KV cache.
    """

    case: Case
    row: Row
    measured: RowResult | None
    facts: CaseResult | None
    missing: str = ""
    kv_is_fixed: bool = False

    @property
    def hides_speed(self) -> bool:
        """Whether the speed is hidden: a lever that changes answers must first show by how much."""
        return self.case.quality and (self.outputs is None or not self.outputs.has_price(quality=True))

    @property
    def outputs(self) -> Outputs | None:
        """What the lever does to the answers, as far as it is known."""
        return None if self.facts is None else self.facts.outputs

    @property
    def agreement(self) -> Agreement:
        """The worst agreement of its metrics: a single one that differs deserves a sentence."""
        if self.measured is None or self.hides_speed:
            return Agreement.MISSING
        for outcome in (Agreement.DIFFERS, Agreement.OPEN, Agreement.AGREES):
            if self.figures(outcome):
                return outcome
        return Agreement.MISSING

    def figures(self, outcome: Agreement) -> tuple[str, ...]:
        """The metrics with this outcome, of those that have an expectation."""
        return tuple(
            name
            for name, sign in self.row.expected.items()
            if agreement(self.effects.get(name), sign) is outcome
        )

    @property
    def effects(self) -> Mapping[str, LeverEffect]:
        """What was measured and may be shown, by metric."""
        if self.measured is None or self.hides_speed:
            return {}
        return {effect.metric: effect for effect in self.measured.effects}


def findings(cases: Sequence[Case], results: Results) -> tuple[LeverFinding, ...]:
    """Every row of these cases, measured or not."""
    return tuple(
        LeverFinding(
            case,
            row,
            results.rows.get(case.key(row)),
            results.cases.get(case.engines_key),
            _missing_reason(case, row, results),
            _kv_is_fixed(case, results),
        )
        for case in cases
        for row in case.rows
    )


def _missing_reason(case: Case, row: Row, results: Results) -> str:
    """Why a row was not measured: for its own reason, or because an engine of its case did not run."""
    return results.not_measured.get(case.key(row)) or results.not_measured.get(case.name, "")


def _kv_is_fixed(case: Case, results: Results) -> bool:
    # On a CPU the KV cache has a fixed size; on a GPU it takes what the weights leave.
    where = results.circumstances
    in_bytes = where.device == "cpu" or where.engine.kv_cache_memory_bytes is not None
    return in_bytes and case.off.levers == case.on.levers and case.off.scheme != case.on.scheme


def agreement(effect: LeverEffect | None, expected: Sign) -> Agreement:
    """Whether one metric's whole interval is as expected, none of it is, or it is undecided."""
    if effect is None or effect.verdict is MetricVerdict.UNKNOWN or effect.low is None or effect.high is None:
        return Agreement.MISSING
    match expected:
        case Sign.LOWER:
            agrees, differs = effect.high < 0, effect.low > 0
        case Sign.HIGHER:
            agrees, differs = effect.low > 0, effect.high < 0
        case Sign.SAME:
            agrees = effect.low >= -MARGIN and effect.high <= MARGIN
            differs = effect.low > MARGIN or effect.high < -MARGIN
    return Agreement.AGREES if agrees else Agreement.DIFFERS if differs else Agreement.OPEN


def change_in_words(effect: LeverEffect | None) -> str:
    """`-62%`; a ratio where percentages grow long."""
    if effect is None or effect.change is None:
        return "–"
    if effect.scale is Scale.RELATIVE and effect.change >= 1:
        return f"{1 + effect.change:.1f}x"
    return f"{effect.change * 100:+.0f}{' points' if effect.scale is Scale.POINTS else '%'}"


def interval_in_words(effect: LeverEffect | None) -> str:
    """`-65 to -58%`, empty without an interval."""
    if effect is None or effect.low is None or effect.high is None:
        return ""
    if effect.scale is Scale.RELATIVE and effect.high >= 1:
        return f"{_ratio(1 + effect.low)} to {_ratio(1 + effect.high)}x"
    return f"{effect.low * 100:+.0f} to {effect.high * 100:+.0f}%"


def _ratio(ratio: float) -> str:
    # Beyond that, a bound only says that the ratio is unknown.
    return f"{ratio:.1f}" if ratio < 100 else "over 100"


def value_in_words(effect: LeverEffect, value: float | None) -> str:
    """A figure with its unit."""
    if value is None:
        return "–"
    return f"{value:,.1f} tokens/s" if effect.metric == THROUGHPUT else duration(value)


def capacity_in_words(finding: LeverFinding) -> str:
    """How many tokens the KV cache holds, off and on."""
    facts = finding.facts
    if facts is None or facts.kv_tokens_off is None or facts.kv_tokens_on is None:
        return "–"
    if facts.kv_tokens_off == facts.kv_tokens_on:
        return "fixed here" if finding.kv_is_fixed else "same"
    return f"{facts.kv_tokens_on / facts.kv_tokens_off:.2f}x"


def outputs_in_words(outputs: Outputs | None, *, quality: bool) -> str:
    """How many answers stay the same, and the change in perplexity where it is the price or explains it."""
    if outputs is None:
        return "not read yet"
    if not outputs.answers:
        return f"not read, {outputs.reason}"
    words = f"{outputs.equal}/{outputs.answers} equal"
    if not quality and (outputs.perplexity_change is None or outputs.equal == outputs.answers):
        return words
    return f"{words}, {_perplexity_in_words(outputs)}"


def _perplexity_in_words(outputs: Outputs) -> str:
    if outputs.perplexity_change is None:
        return f"perplexity not read: {outputs.reason}"
    if outputs.low is None or outputs.high is None:
        return f"perplexity {outputs.perplexity_change:+.1%} (too little text for an interval)"
    return f"perplexity {outputs.perplexity_change:+.1%} ({outputs.low:+.1%} to {outputs.high:+.1%})"


def answers_in_short(outputs: Outputs | None, *, quality: bool) -> str:
    """How many answers stay the same, and the price of a lever that has one, in few characters."""
    if outputs is None or not outputs.answers:
        return "–"
    equal = f"{outputs.equal}/{outputs.answers} ="
    if not quality or outputs.perplexity_change is None:
        return equal
    return f"{equal}\nppl {outputs.perplexity_change:+.1%}"


def footnotes(finding: LeverFinding) -> tuple[str, ...]:
    """Why metrics of a measured row are missing, and what was unusual while it was measured."""
    if finding.measured is None:
        return ()
    unknown = (effect for effect in finding.effects.values() if effect.verdict is MetricVerdict.UNKNOWN)
    silent = (f"{LABELS[effect.metric]} –: {effect.reason}" for effect in unknown if effect.reason)
    return (*silent, *finding.measured.remarks)


def shows(row: Row) -> str:
    """Whether the traffic was chosen to show the lever or to give it nothing to do."""
    return "can show it" if row.can_show else "cannot show it"


def expected_in_words(row: Row) -> str:
    """`TTFT lower, TPOT same`."""
    return ", ".join(f"{LABELS[name]} {row.expected[name]}" for name in SHOWN if name in row.expected)


def conclusion(finding: LeverFinding, *, explained: bool = True) -> str:
    """Which metrics came out as expected, and what explains those that did not."""
    if finding.measured is None:
        return finding.missing or "not measured yet"
    if finding.hides_speed:
        return PRICE_UNKNOWN
    if not finding.row.expected:
        return "nothing was expected for sure"
    parts = []
    for outcome in (Agreement.AGREES, Agreement.DIFFERS, Agreement.OPEN, Agreement.MISSING):
        if names := finding.figures(outcome):
            why = f" ({finding.row.unless})" if outcome is Agreement.DIFFERS and explained else ""
            parts.append(f"{' and '.join(LABELS[name] for name in names)} {outcome.value}{why}")
    return "; ".join(parts)

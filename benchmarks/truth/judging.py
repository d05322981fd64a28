"""Whether a verdict is right about a scene, and what all verdicts come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from phasewise.diagnosis.finding import Confidence
from phasewise.diagnosis.verdict import Ruling, Verdict

from .factors import FACTORS, FAILING, HEALTHY, INSEPARABLE, NO_KNOWN_CAUSE
from .removal import UNSCORED, Truth

SLOW_RULINGS = frozenset({Ruling.SLOW_TO_START, Ruling.SLOW_TO_STREAM, Ruling.FAILING})


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict in what is judged of it: its ruling, the causes it names first, and its confidence."""

    ruling: str
    causes: tuple[str, ...] = ()
    confidence: str | None = None

    @property
    def name(self) -> str:
        """The column of the confusion matrix."""
        if self.causes:
            return "+".join(self.causes)
        return self.ruling if self.ruling not in {"slow_to_start", "slow_to_stream"} else NO_KNOWN_CAUSE


@dataclass(frozen=True, slots=True)
class Judged:
    """One scene, its truth, and what was said of it."""

    id: str
    level: str
    planted: tuple[str, ...]
    truth: Truth
    said: Said
    right: bool

    @property
    def scored(self) -> bool:
        """Whether it counts."""
        return self.truth.state != UNSCORED

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return self.truth.state == HEALTHY

    @property
    def unknown(self) -> bool:
        """Whether every true cause is one that no rule has a name for."""
        return bool(self.truth.causes) and all(is_unknown(name) for name in self.truth.causes)


def is_unknown(name: str) -> bool:
    """Whether no rule has a name for this factor."""
    return name in FACTORS and not any(FACTORS[name].says.values())


def said_by(verdict: Verdict) -> Said:
    """What is judged of a verdict: its top finding, with the rival that it could not exclude."""
    top = verdict.top
    if top is None:
        return Said(verdict.ruling.value)
    causes = (top.cause.value, *(() if top.rival is None else (top.rival.value,)))
    return Said(verdict.ruling.value, causes, top.confidence.value)


def is_right(truth: Truth, said: Said, level: str) -> bool:
    """Phase and first cause are true. Of two named causes both must be, or be inseparable at this level."""
    if truth.state == HEALTHY:
        return said.ruling == Ruling.HEALTHY
    if said.ruling not in truth.says:
        return False
    true, named = truth.says[said.ruling], frozenset(said.causes)
    if said.ruling == FAILING and not named:
        return True
    if not true or not named:
        return not true and not named
    if len(named) > 1 and any(named == pair for pair in INSEPARABLE[level]):
        return bool(named & true)
    return named <= true


def summary(rows: Sequence[Judged], minutes: float) -> dict[str, Any]:
    """The record: counts, calibration by confidence, and the confusion matrix."""
    scored = [row for row in rows if row.scored]
    healthy = [row for row in scored if row.healthy]
    slow = [row for row in scored if not row.healthy]
    unknown = [row for row in slow if row.unknown]
    two = [row for row in slow if len(row.truth.causes) > 1]
    by_confidence = {
        level: [row for row in slow if row.said.confidence == level.value] for level in Confidence
    }
    high, medium, low = (by_confidence[it] for it in (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW))
    return {
        "virtual_scenes": len(scored),
        "virtual_right": _right(scored),
        "virtual_slow": len(slow),
        "virtual_slow_right": _right(slow),
        "virtual_high": len(high),
        "virtual_high_right": _right(high),
        "medium": len(medium),
        "medium_right": _right(medium),
        "low": len(low),
        "low_right": _right(low),
        "low_share": _share(len(low), len(slow)),
        "names_two_share": _share(sum(len(row.said.causes) > 1 for row in scored), len(scored)),
        "unknown": len(unknown),
        "unknown_right_share": _share(_right(unknown), len(unknown)),
        "healthy": len(healthy),
        "false_alarms": sum(row.said.ruling in SLOW_RULINGS for row in healthy),
        "unscored": len(rows) - len(scored),
        "unscored_share": _share(len(rows) - len(scored), len(rows)),
        "real_scenes": None,
        "real_right": None,
        "stock_scenes": None,
        "stock_right": None,
        "real_high": None,
        "real_high_right": None,
        "advice_regret_median": None,
        "advice_harmful_share": None,
        "by_level": {
            level: f"{_right(part)} of {len(part)}"
            for level in INSEPARABLE
            if (part := [row for row in scored if row.level == level])
        },
        "two_causes": len(two),
        "two_causes_right": _right(two),
        "removal_runs": sum(row.truth.runs for row in rows),
        "minutes": round(minutes, 2),
        "confusion": confusion(scored),
    }


def _right(rows: Iterable[Judged]) -> int:
    return sum(row.right for row in rows)


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def confusion(rows: Iterable[Judged]) -> dict[str, dict[str, int]]:
    """How often each truth was called what."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.truth.name, Counter())[row.said.name] += 1
    return {truth: dict(said.most_common()) for truth, said in sorted(counts.items())}


def table(rows: Sequence[Judged]) -> str:
    """The confusion matrix as text: a line per truth, with what was said wrongly and how often."""
    scored = [row for row in rows if row.scored]
    lines = []
    for truth in sorted({row.truth.name for row in scored}):
        mine = [row for row in scored if row.truth.name == truth]
        wrong = Counter(f"{_short(row.said.ruling)}{row.said.name}" for row in mine if not row.right)
        tail = "".join(f"   {count}x {word}" for word, count in wrong.most_common())
        lines.append(f"{truth:<34} {_right(mine):>4} of {len(mine):<4}{tail}")
    return "\n".join(lines)


def _short(ruling: str) -> str:
    return {"slow_to_start": "start: ", "slow_to_stream": "stream: "}.get(ruling, "")


# --- A judged scene as plain JSON types.


def truth_record(truth: Truth) -> dict[str, Any]:
    """The truth as plain JSON types."""
    return asdict(truth) | {"says": {phase: sorted(names) for phase, names in truth.says.items()}}


def truth_from_record(record: Mapping[str, Any]) -> Truth:
    """Read a truth."""
    says = {phase: frozenset(names) for phase, names in record["says"].items()}
    return Truth(**{**record, "says": says, "causes": tuple(record["causes"])})

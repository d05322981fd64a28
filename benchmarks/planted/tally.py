"""What the runs come to: who was right, what was mistaken for what, and how much nobody explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from phasewise.experiments.validate.claims import MOST_TPOT_SHARE, MOST_TTFT_MS, MOST_TTFT_SHARE

from .cases import HEALTHY

REAL, FAKE = "real", "fake"
NO_VERDICT = "no verdict"

Verdict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Residual:
    """What no clock explains of a latency, at the median request."""

    share: float
    ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run and what was said of it."""

    kind: str
    run_set: str
    case: str
    seed: int
    expected: tuple[str, ...]
    said: str
    right: bool
    when: str
    commit: str
    ttft: Residual | None = None
    itl: Residual | None = None
    runners_up: tuple[str, ...] = ()
    machine: str = ""
    stock: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing was planted."""
        return self.expected == (HEALTHY,)


def said_by(verdict: Verdict | None) -> str:
    """The cause that a verdict names, or its ruling where it names none."""
    return NO_VERDICT if verdict is None else str(verdict["cause"] or verdict["verdict"])


def runners_up(verdict: Verdict | None) -> tuple[str, ...]:
    """The causes that stand below the first one, with their shares."""
    findings = verdict["findings"][1:] if verdict is not None else ()
    return tuple(f"{found['cause']} {found['share']:.2f}" for found in findings)


def ttft_unexplained(verdict: Verdict | None) -> Residual | None:
    """What is unexplained of TTFT."""
    start = None if verdict is None else verdict["start"]
    if start is None or start["unexplained_share_p50"] is None:
        return None
    return Residual(start["unexplained_share_p50"], start["unexplained_abs_p50_ms"])


def itl_unexplained(verdict: Verdict | None) -> Residual | None:
    """What is unexplained of the time between tokens, at the median stream."""
    stream = None if verdict is None else verdict["stream"]
    if stream is None or stream["unexplained_share_p50"] is None:
        return None
    return Residual(stream["unexplained_share_p50"], stream["unexplained_abs_p50_ms"])


def within_bounds(run: Run) -> bool:
    """Whether so little is unexplained as is promised; of a run without figures nothing is known to be."""
    if run.ttft is None or run.itl is None:
        return False
    starts = run.ttft.share <= MOST_TTFT_SHARE or run.ttft.ms <= MOST_TTFT_MS
    return starts and run.itl.share <= MOST_TPOT_SHARE


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The record: counts, residuals of runs in which nothing was planted, rows, and the confusion matrix."""
    real, fake = ([it for it in runs if it.kind == kind] for kind in (REAL, FAKE))
    # Counters alone tell of no single request, so that nothing can be left over of one.
    sound = [it for it in real if it.healthy and not it.stock]
    return {
        "real_runs": len(real),
        "real_right": sum(it.right for it in real),
        "fake_runs": len(fake),
        "fake_right": sum(it.right for it in fake),
        "no_verdict": sum(it.said == NO_VERDICT for it in runs),
        "false_alarms": sum(it.healthy and not it.right for it in runs),
        "unexplained_ttft": _spread(it.ttft for it in sound),
        "unexplained_itl": _spread(it.itl for it in sound),
        "within_bounds": f"{sum(map(within_bounds, sound))} of {len(sound)}",
        "residuals": [
            {
                "run": f"{it.case} #{it.seed}",
                "ttft": None if it.ttft is None else asdict(it.ttft),
                "itl": None if it.itl is None else asdict(it.itl),
                "within_bounds": within_bounds(it),
            }
            for it in sound
        ],
        "confusion": {kind: confusion(part) for kind, part in ((REAL, real), (FAKE, fake)) if part},
        "rows": [asdict(it) for it in runs],
    }


def _spread(residuals: Iterable[Residual | None]) -> dict[str, float] | None:
    """The typical run and the worst one."""
    seen = [it for it in residuals if it is not None]
    if not seen:
        return None
    return {
        "share_p50": round(median(it.share for it in seen), 4),
        "ms_p50": round(median(it.ms for it in seen), 2),
        "share_worst": round(max(it.share for it in seen), 4),
        "ms_worst": round(max(it.ms for it in seen), 2),
    }


def confusion(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    """How often each planted case was called what."""
    counts: dict[str, dict[str, int]] = {}
    for it in runs:
        row = counts.setdefault(it.case, {})
        row[it.said] = row.get(it.said, 0) + 1
    return counts


def table(runs: Sequence[Run]) -> str:
    """The confusion matrix as text: a line per case, the right answers first."""
    lines = []
    for kind in (REAL, FAKE):
        part = [it for it in runs if it.kind == kind]
        for case, said in confusion(part).items():
            mine = [it for it in part if it.case == case]
            right = sum(it.right for it in mine)
            wrong = {word: count for word, count in said.items() if word not in mine[0].expected}
            tail = "".join(f"   {count}x {word}" for word, count in sorted(wrong.items()))
            lines.append(
                f"{kind}  {case:<22} {right:>3} of {len(mine):<3} {'/'.join(mine[0].expected)}{tail}"
            )
    return "\n".join(lines)

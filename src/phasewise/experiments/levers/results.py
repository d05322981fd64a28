"""What was measured, stored on disk row by row, so that an interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from phasewise.core.errors import ConfigError
from phasewise.experiments.lever_runs.circumstances import Circumstances
from phasewise.experiments.levers.catalogue import Case, digest
from phasewise.fleet.config.gateway import Frozen
from phasewise.fleet.local.run_files import write_private
from phasewise.loadgen.statistics.comparison import Comparison, MetricVerdict, Scale

RESULTS_VERSION = 1


class LeverEffect(Frozen):
    """What switching a lever on did to one figure. `change` is relative, or in points if `scale` says so."""

    metric: str
    verdict: MetricVerdict
    scale: Scale = Scale.RELATIVE
    off: float | None = None
    on: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    reason: str = ""


class RowResult(Frozen):
    """One lever with one workload, measured."""

    effects: tuple[LeverEffect, ...]
    requests: int
    pairs: int
    void_pairs: int
    remarks: tuple[str, ...]
    took_s: float
    measured_unix_s: float


class Outputs(Frozen):
    """What a lever does to the answers: how many stay the same, and how much surprise a held-out text holds.

    `perplexity_change` is relative. `sentence` is the whole result; `reason` says why nothing could be read.
    """

    answers: int = 0
    equal: int = 0
    perplexity_off: float | None = None
    perplexity_on: float | None = None
    perplexity_change: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str = ""
    reason: str = ""

    def has_price(self, *, quality: bool) -> bool:
        """Whether enough was read: answers, and the text with its interval if the lever may change them."""
        return self.answers > 0 and (not quality or None not in (self.perplexity_change, self.low, self.high))


class CaseResult(Frozen):
    """What is true of a lever whatever the workload: KV cache capacity, and the answers."""

    kv_tokens_off: int | None = None
    kv_tokens_on: int | None = None
    outputs: Outputs | None = None


class PagingResult(Frozen):
    """The share of reserved KV cache in use, with blocks and with the longest context reserved."""

    block_tokens: int
    reserved_tokens: int
    samples: int
    used_tokens: float
    paged_tokens: float
    paged_waste: float
    paged_waste_range: tuple[float, float]
    reserved_waste: float
    reserved_waste_range: tuple[float, float]
    fits_paged: int
    fits_reserved: int
    measured_unix_s: float


class Results(Frozen):
    """Everything measured under the same circumstances. `floors` are A/A comparisons, by workload;
    keys are the catalogue's, which change with the definitions."""

    version: int = RESULTS_VERSION
    circumstances: Circumstances
    began_unix_s: float
    rows: dict[str, RowResult] = Field(default_factory=dict)
    cases: dict[str, CaseResult] = Field(default_factory=dict)
    floors: dict[str, RowResult] = Field(default_factory=dict)
    paging: PagingResult | None = None
    attention_backend: str = ""
    not_measured: dict[str, str] = Field(default_factory=dict)

    def measured_between(self) -> tuple[float, float] | None:
        """When the first and the last of these results were measured; None without any."""
        times = [row.measured_unix_s for row in (*self.rows.values(), *self.floors.values())]
        if self.paging is not None:
            times.append(self.paging.measured_unix_s)
        return (min(times), max(times)) if times else None


@dataclass(slots=True)
class ResultsFile:
    """The results of a run; every change is written to disk at once."""

    path: Path
    results: Results

    def add(self, **more: object) -> None:
        """Add results: entries of mappings are added, all else is replaced."""
        changed = {
            name: {**getattr(self.results, name), **value} if isinstance(value, dict) else value
            for name, value in more.items()
        }
        self._set(changed)

    def forget(self, cases: Sequence[Case]) -> None:
        """Drop the results of these cases, and the noise floors of their workloads."""
        names = tuple(f"{case.name}/" for case in cases)
        traffic = tuple(row.workload.key for case in cases for row in case.rows)
        known = self.results
        self._set(
            {
                "rows": {key: row for key, row in known.rows.items() if not key.startswith(names)},
                "cases": {key: facts for key, facts in known.cases.items() if not key.startswith(names)},
                "floors": {key: floor for key, floor in known.floors.items() if not key.endswith(traffic)},
                "paging": None if any(case.by_counters for case in cases) else known.paging,
            }
        )

    def _set(self, changed: dict[str, object]) -> None:
        self.results = self.results.model_copy(update=changed)
        write_private(self.path, self.results.model_dump_json(indent=1).encode())


def open_results(home: Path, now: Circumstances, *, again: bool) -> ResultsFile:
    """The file for these circumstances, with its content; `again` replaces an unreadable one."""
    path = home / "levers" / f"{digest(now)}.json"
    fresh = ResultsFile(path, Results(circumstances=now, began_unix_s=time.time()))
    if not path.exists():
        return fresh
    try:
        known = Results.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if again:
            return fresh
        raise ConfigError(
            f"{path} cannot be read as lever results", hint="measure again with --again"
        ) from error
    # The reason why something could not be measured may be fixed by now.
    return ResultsFile(path, known.model_copy(update={"not_measured": {}}))


def known_results(home: Path, model: str) -> Results | None:
    """The latest results with this model on this machine; None without any."""
    found = []
    for path in sorted((home / "levers").glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            found.append(Results.model_validate_json(path.read_bytes()))
    measured = (it for it in found if it.circumstances.model == model and it.rows)
    return max(measured, key=lambda it: (it.measured_between() or (0.0, 0.0))[1], default=None)


def effect_of(comparison: Comparison) -> LeverEffect:
    """A comparison's result, as it is stored."""
    interval = comparison.interval
    return LeverEffect(
        metric=comparison.metric.name,
        verdict=comparison.verdict,
        scale=comparison.scale,
        off=comparison.a,
        on=comparison.b,
        change=comparison.change,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        confidence=None if interval is None else interval.confidence,
        reason=comparison.reason,
    )

"""A run with its figures: its load and workload as a sentence would name them, and its gaps by batch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phasewise.benchmark.generator import RunProgress
from phasewise.benchmark.results import BenchReport
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.workload.arrivals import ClosedLoop, Load, OpenLoop, Spacing
from phasewise.benchmark.workload.drafts import Written
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.benchmark.workload.traces import Trace
from phasewise.core import latency
from phasewise.core.timeline import Timeline
from phasewise.core.units import duration, elapsed, share, significant


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with its figures. `label` names it within a sweep, such as `2 req/s`."""

    run: BenchRun
    report: BenchReport
    label: str = ""

    @property
    def counted(self) -> tuple[Timeline, ...]:
        """The requests that the figures count: those that arrived after the warm-up."""
        return self.run.timelines[self.report.window.warm_up_requests :]

    def arrival_s(self, timeline: Timeline) -> float:
        """When a request was meant to be sent, in seconds of the run."""
        return timeline.started_unix_s - self.run.started_unix_s

    def readings_s(self, reading: Callable[[Timeline], float | None]) -> list[float]:
        """One latency of every counted request that has it."""
        return [value for timeline in self.counted if (value := reading(timeline)) is not None]


def load_in_words(load: Load, *, conversations: bool = False) -> str:
    """A load in a few words: `2 req/s`, `8 at once`.

    With `conversations` the load counts conversations, not turns.
    """
    if isinstance(load, ClosedLoop):
        return f"{load.concurrency}{' conversations' if conversations else ''} at once"
    if isinstance(load, OpenLoop):
        what = "conversations" if conversations else "req"
        return f"{significant(load.rate_per_s)} {what}/s{_spacing_in_words(load)}"
    return f"the trace's times, {load.speed:g}x"


def _spacing_in_words(load: OpenLoop) -> str:
    if load.spacing is Spacing.POISSON:
        return ""
    bursts = f", burstiness {load.burstiness:g}" if load.spacing is Spacing.GAMMA else ""
    return f" ({load.spacing.value}{bursts})"


def workload_in_words(spec: PlanSpec, shape: Shape | None = None) -> str:
    """The workload of a run: lengths, shared prefixes, turns.

    A plan's own `shape` takes precedence over the specification's: it is limited to the model's context.
    """
    if isinstance(spec.source, Trace):
        return f"the trace {spec.source.name}"
    if isinstance(spec.source, Written):
        return f"{_written_in_words(spec.source)}, outputs of {_lengths_in_words(spec.source.output)} tokens"
    shape = shape or spec.source
    parts = [
        f"prompts of {_lengths_in_words(shape.prompt)} tokens",
        f"outputs of {_lengths_in_words(shape.output)}",
    ]
    if shape.shared_prefix_tokens:
        several = (
            f"one of {shape.shared_prefixes} system prompts"
            if shape.shared_prefixes > 1
            else "a system prompt"
        )
        parts.append(f"{share(shape.shared_share)} with {several} of {shape.shared_prefix_tokens} tokens")
    if spec.conversations is not None:
        parts.append(f"conversations of {spec.conversations.turns} turns")
    return ", ".join(parts)


def _written_in_words(written: Written) -> str:
    many = f"{len(written.prompts)} written prompts" if len(written.prompts) > 1 else "a written prompt"
    return f"{many} ({written.about})"


def _lengths_in_words(lengths: Lengths) -> str:
    if lengths.spread == 0:
        return f"{lengths.median_tokens:,}"
    return f"about {lengths.median_tokens:,} ({lengths.low_tokens:,} to {lengths.high_tokens:,})"


BAR_CELLS = 20


def status(progress: RunProgress | None) -> str:
    """The progress of a run in one line; `progress` is None while it is being prepared."""
    if progress is None:
        return "preparing prompts"
    filled = round(BAR_CELLS * progress.done / max(progress.planned, 1))
    parts = [
        f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {progress.done}/{progress.planned}",
        elapsed(progress.elapsed_s),
        f"{progress.done / progress.elapsed_s if progress.elapsed_s > 0 else 0:.1f} req/s",
        f"{progress.in_flight} open",
    ]
    if progress.ttft_s is not None:
        parts.append(f"TTFT {duration(progress.ttft_s)}")
    if progress.itl_s is not None:
        parts.append(f"ITL {duration(progress.itl_s)}")
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    return "  ".join(parts)


# --- Gaps between chunks, grouped by how many requests ran at the time.

Floats = npt.NDArray[np.float64]

MAX_GROUPS = 24
"""With more boxes than this, neighbouring counts are merged."""
MIN_GAPS = 10
"""Counts with fewer gaps than this are not drawn."""


TAIL_GAPS = 100
"""With fewer gaps than this, the 99th percentile says nothing."""


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The gaps that were measured while `low` to `high` requests ran, with their percentiles."""

    low: int
    high: int
    gaps: int
    p10_s: float
    p25_s: float
    p50_s: float
    p75_s: float
    p90_s: float
    p99_s: float

    @property
    def name(self) -> str:
        """The counts of running requests that it covers."""
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"

    @property
    def top_s(self) -> float:
        """Its highest percentile that says something."""
        return self.p90_s if self.gaps < TAIL_GAPS else self.p99_s


def gaps_by_concurrency(measured: Measured) -> tuple[Concurrency, ...]:
    """Every counted gap, by the number of requests that ran at the time.

    Counts with few gaps are left out, unless there are no others.
    """
    gaps = [
        (measured.arrival_s(timeline) + end_s, gap_s)
        for timeline in measured.counted
        for end_s, gap_s in zip(timeline.content_times_s[1:], latency.chunk_gaps_s(timeline), strict=True)
    ]
    if not gaps:
        return ()
    ends_s, gaps_s = np.array(gaps).T
    by_engine = counted_by_engine(measured)
    counts = _engine_counts(measured, ends_s) if by_engine else _client_counts(measured, ends_s - gaps_s / 2)
    width = -(-int(counts.max()) // MAX_GROUPS)
    group_of = np.maximum(counts - 1, 0) // width
    found = []
    for group in map(int, np.unique(group_of)):
        held_s = gaps_s[group_of == group]
        percentiles = map(float, np.percentile(held_s, (10, 25, 50, 75, 90, 99)))
        found.append(Concurrency(group * width + 1, (group + 1) * width, held_s.size, *percentiles))
    return tuple(concurrency for concurrency in found if concurrency.gaps >= MIN_GAPS) or tuple(found)


def counted_by_engine(measured: Measured) -> bool:
    """Whether the counts are the engine's own."""
    engine = measured.run.engine
    return engine is not None and bool(engine.steps)


def _client_counts(measured: Measured, at_s: Floats) -> npt.NDArray[np.int64]:
    streams = [
        (measured.arrival_s(timeline), timeline.content_times_s)
        for timeline in measured.run.timelines
        if timeline.content_times_s
    ]
    first_s = np.sort([start_s + times_s[0] for start_s, times_s in streams])
    last_s = np.sort([start_s + times_s[-1] for start_s, times_s in streams])
    return np.searchsorted(first_s, at_s, side="right") - np.searchsorted(last_s, at_s, side="left")


def _engine_counts(measured: Measured, at_s: Floats) -> npt.NDArray[np.int64]:
    """How many requests ran in the step that made a token: the last step that ended before the token arrived.

    A step record counts the requests that remain, so those that ended in the step are added.
    """
    steps = measured.run.engine.steps if measured.run.engine is not None else ()
    ends_s = np.array([step.ended_unix_s - measured.run.started_unix_s for step in steps])
    running = np.array([max(step.running + len(step.finished), 1) for step in steps])
    counts: npt.NDArray[np.int64] = running[np.maximum(np.searchsorted(ends_s, at_s, side="right") - 1, 0)]
    return counts

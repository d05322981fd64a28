"""How the requests of a window streamed: times per token, gaps, stalls and the ledger of a token.

An aborted stream counts as far as it went, because clients abort stalled streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phasewise.core.latency import chunk_gaps_s, silence_s, tpot_s
from phasewise.core.slo import Slo
from phasewise.core.statistics import quantile
from phasewise.core.timeline import Outcome, Timeline
from phasewise.diagnosis.analysis.attribution import Readings, reading_of
from phasewise.diagnosis.analysis.stall_causes import ExplainedStall, explain_stalls
from phasewise.diagnosis.analysis.token_ledger import (
    StreamStretch,
    TokenLedger,
    recorded_streams,
    stream_ledgers,
    token_ledger,
)

NOTICED_STALL_TOKENS = 10
"""A stall as long as this many tokens is noticeable."""
ENDED_WELL_OR_OPEN = frozenset({Outcome.SUCCEEDED, Outcome.UNFINISHED})
FEWEST_CUT_CHUNKS = 4
"""An aborted stream with fewer chunks has no usable TPOT."""


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """How requests streamed. Seconds per output token after the first: ordinary steps, the excess of steps
    with prompt tokens, and the unexplained part; the ledger has the rest.

    `unexplained_s` is a mean, in which positive and negative differences between streams and their steps
    cancel; `unexplained_abs_p50_s` and `unexplained_share_p50` are the median of the absolute differences.
    `slow_ledger` is that of slow streams, in which causes are searched. `broken_off` streams were aborted.
    """

    streams: int
    step_timed: int
    tpot_mean_s: float
    tpot_p50_s: float
    tpot_p90_s: float
    gap_p50_s: float | None
    gap_p99_s: float | None
    gap_max_s: float | None
    step_s: float | None
    chunk_excess_s: float | None
    unexplained_s: float | None
    slow: int
    lost_s: float
    stall_lost_s: float
    stalls: tuple[ExplainedStall, ...] = ()
    ledger: TokenLedger | None = None
    slow_ledger: TokenLedger | None = None
    broken_off: int = 0
    unexplained_abs_p50_s: float | None = None
    unexplained_share_p50: float | None = None


def stream_summary(timelines: Sequence[Timeline], slo: Slo, readings: Readings) -> StreamSummary | None:
    """How these requests streamed, or None when no stream has a time per token."""
    streams = [
        _Stream(timeline, explain_stalls(timeline, reading_of(timeline, readings)))
        for timeline in timelines
        if len(timeline.content_times_s) > 1
    ]
    stretches = _stretches(streams)
    if not stretches:
        return None
    per_token = [stretch.per_token_s for stretch in stretches]
    gaps = [gap for stream in streams for gap in chunk_gaps_s(stream.timeline)]
    noticed = tuple(found for stream in streams for found in stream.noticed(slo))
    losses = _losses_s(streams, stretches, slo)
    ledgers = stream_ledgers(stretches, readings)
    ledger = token_ledger(ledgers)
    step_timed = len(recorded_streams(stretches, readings))
    return StreamSummary(
        streams=len(streams),
        step_timed=step_timed,
        tpot_mean_s=fmean(per_token),
        tpot_p50_s=quantile(per_token, 0.5),
        tpot_p90_s=quantile(per_token, 0.9),
        gap_p50_s=quantile(gaps, 0.5),
        gap_p99_s=quantile(gaps, 0.99),
        gap_max_s=max([*gaps, *(silence_s(stream.timeline) or 0.0 for stream in streams)]),
        step_s=None if ledger is None else ledger.step_s,
        chunk_excess_s=ledger.prompts_s if ledger is not None and step_timed else None,
        unexplained_s=None if ledger is None else ledger.unexplained_s,
        slow=sum(loss > 0 for loss in losses),
        lost_s=sum(losses),
        stall_lost_s=sum(found.stall.excess_s for found in noticed),
        stalls=noticed,
        ledger=ledger,
        slow_ledger=_slow_ledger(stretches, slo, readings) or ledger,
        broken_off=sum(stream.timeline.outcome not in ENDED_WELL_OR_OPEN for stream in streams),
        unexplained_abs_p50_s=median(abs(each.unexplained_s) for each in ledgers) if ledgers else None,
        unexplained_share_p50=median(each.unexplained_share for each in ledgers) if ledgers else None,
    )


def _slow_ledger(stretches: Sequence[StreamStretch], slo: Slo, readings: Readings) -> TokenLedger | None:
    """The mean token of the streams that missed the objective, weighted by what each lost."""
    slow = [stretch for stretch in stretches if stretch.per_token_s > slo.tpot_s]
    ledgers = stream_ledgers(slow, readings)
    lost_s = [stretch.seconds - slo.tpot_s * stretch.tokens for stretch in slow]
    return token_ledger(ledgers, lost_s if len(ledgers) == len(slow) else None)


@dataclass(frozen=True, slots=True)
class _Stream:
    """A stream and its stalls."""

    timeline: Timeline
    stalls: tuple[ExplainedStall, ...]

    def noticed(self, slo: Slo) -> tuple[ExplainedStall, ...]:
        """The noticeable stalls."""
        return tuple(
            found for found in self.stalls if found.stall.duration_s >= NOTICED_STALL_TOKENS * slo.tpot_s
        )

    def stalled_s(self, slo: Slo) -> float:
        """Their total excess time."""
        return sum(found.stall.excess_s for found in self.noticed(slo))


def _stretches(streams: Sequence[_Stream]) -> tuple[StreamStretch, ...]:
    """Every stream with a time per token; aborted ones up to their last chunk.

    The tokens of an aborted stream are not counted: its chunks are assumed to hold as many as those of
    others.
    """
    whole = [
        StreamStretch(stream.timeline, per_token * (tokens - 1), tokens - 1, stream.stalls)
        for stream in streams
        if (per_token := tpot_s(stream.timeline)) is not None and (tokens := stream.timeline.output_tokens)
    ]
    chunks = sum(len(stretch.timeline.content_times_s) - 1 for stretch in whole)
    tokens_per_chunk = sum(stretch.tokens for stretch in whole) / chunks if chunks else 1.0
    cut = [
        _as_far_as_it_went(stream, tokens_per_chunk)
        for stream in streams
        if _has_pace_but_no_end(stream.timeline)
    ]
    return tuple(whole + cut)


def _has_pace_but_no_end(timeline: Timeline) -> bool:
    if timeline.outcome is Outcome.SUCCEEDED or timeline.choices != 1:
        return False
    return len(timeline.content_times_s) >= FEWEST_CUT_CHUNKS


def _as_far_as_it_went(stream: _Stream, tokens_per_chunk: float) -> StreamStretch:
    times = stream.timeline.content_times_s
    return StreamStretch(
        stream.timeline, times[-1] - times[0], (len(times) - 1) * tokens_per_chunk, stream.stalls
    )


def _losses_s(streams: Sequence[_Stream], stretches: Sequence[StreamStretch], slo: Slo) -> list[float]:
    """Seconds beyond the objective per stream: over all tokens, or in stalls if that is more."""
    over_all = {id(stretch.timeline): stretch.seconds - slo.tpot_s * stretch.tokens for stretch in stretches}
    return [max(0.0, over_all.get(id(stream.timeline), 0.0), stream.stalled_s(slo)) for stream in streams]

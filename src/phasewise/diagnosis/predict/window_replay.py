"""A window replayed with its own requests and step costs, to see what a changed setting would spare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from statistics import median

from phasewise.core.latency import chunk_gaps_s
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.costs.fit.step import StepWork, prefilling
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.predict.costs import Costs
from phasewise.diagnosis.predict.replay import (
    Experience,
    lost_in_replay_s,
    replay_requests,
    total_lost_s,
)
from phasewise.diagnosis.predict.setup import Setup, Unpredictable, changed, drafting_of
from phasewise.diagnosis.predict.traffic import RecordedTraffic, recorded_traffic

FEWEST_REQUESTS = 6
MOST_TOKENS = 12_000
"""Of longer windows the latest requests are replayed, with about so many output tokens."""
MOST_OFF = 2.5
"""A replay whose loss differs from the measured one by more than this factor shows nothing."""
TOO_FEW_TO_EXTRAPOLATE = 2
"""With a cap of so many streams, nobody has seen what more of them would cost."""


def window_replay(
    timelines: Sequence[Timeline],
    setup: Setup,
    costs: Costs,
    slo: Slo,
    ended_unix_s: float,
    measured_s: float | None = None,
) -> WindowReplay | None:
    """The window, which ended then, to be replayed with changes; None if it cannot be. `measured_s` is what
    was lost, if the timelines do not show it.
    """
    latest = _latest(timelines)
    traffic = recorded_traffic(latest)
    if setup.unknown or len(traffic.requests) < FEWEST_REQUESTS:
        return None
    longest = max(setup.shape.max_model_len, traffic.longest_tokens + 1)
    # The lengths of requests under way are guesses, and a guess may exceed the KV cache.
    blocks = max(setup.shape.total_blocks, ceil(longest / setup.shape.block_size))
    return WindowReplay(
        traffic,
        replace(setup, shape=replace(setup.shape, max_model_len=longest, total_blocks=blocks)),
        costs,
        slo,
        ended_unix_s - latest[0].started_unix_s,
        total_lost_s(map(_experience, latest), slo) if measured_s is None else measured_s,
    )


def _latest(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The requests that can be replayed; of many the latest."""
    usable = [
        timeline
        for timeline in timelines
        if timeline.prompt_tokens and timeline.output_tokens and timeline.content_times_s
    ]
    usable += _with_usual_lengths(
        [timeline for timeline in timelines if timeline.outcome is Outcome.UNFINISHED], usable
    )
    usable.sort(key=lambda timeline: timeline.started_unix_s)
    tokens, first = 0, len(usable)
    while first > 0 and tokens < MOST_TOKENS:
        first -= 1
        tokens += usable[first].output_tokens or 0
    return usable[first:]


def _with_usual_lengths(unfinished: Sequence[Timeline], ended: Sequence[Timeline]) -> Iterator[Timeline]:
    """Requests that are open when the window closes, as long as those that ended in it usually were."""
    if not ended:
        return
    prompt, output = (
        round(median(lengths))
        for lengths in (
            [timeline.prompt_tokens or 1 for timeline in ended],
            [timeline.output_tokens or 1 for timeline in ended],
        )
    )
    cached = sum(timeline.cached_tokens or 0 for timeline in ended) / sum(
        timeline.prompt_tokens or 1 for timeline in ended
    )
    sized = [
        timeline.prompt_tokens / timeline.prompt_bytes
        for timeline in ended
        if timeline.prompt_tokens and timeline.prompt_bytes
    ]
    for timeline in unfinished:
        tokens = round(timeline.prompt_bytes * median(sized)) if sized and timeline.prompt_bytes else prompt
        yield replace(
            timeline,
            prompt_tokens=max(1, timeline.prompt_tokens or tokens),
            cached_tokens=round(cached * tokens)
            if timeline.cached_tokens is None
            else timeline.cached_tokens,
            output_tokens=max(output, len(timeline.content_times_s) + 1),
        )


def _experience(request: Timeline) -> Experience:
    if not request.content_times_s:
        return Experience(request.ended_s)
    unfinished = request.outcome is Outcome.UNFINISHED
    tokens = len(request.content_times_s) if unfinished else request.output_tokens or 1
    return Experience(request.content_times_s[0], chunk_gaps_s(request), tokens)


@dataclass(frozen=True)
class WindowReplay:
    """A window that is replayed with one setting after the other.

    It ends at `until_s`; `measured_s` was lost.
    """

    traffic: RecordedTraffic
    setup: Setup
    costs: Costs
    slo: Slo
    until_s: float
    measured_s: float

    def gain(self, change: LeverChange) -> float | None:
        """The share of the lost time that a change takes away; None if the replay cannot say."""
        after = changed(self.setup, change)
        if isinstance(after, Unpredictable):
            return None
        before, chunk = self.setup.shape, after.shape.max_num_batched_tokens
        if after.shape.max_num_seqs > before.max_num_seqs and before.max_num_seqs <= TOO_FEW_TO_EXTRAPOLATE:
            return None
        if chunk > before.max_num_batched_tokens:
            largest = prefilling(min(chunk, self.traffic.longest_tokens))
            if not self.costs.of(largest).seen:
                return None
        return 1.0 - self._lost_with(after) / self.lost_s if self._agrees else None

    @cached_property
    def lost_s(self) -> float:
        """What the replay loses as things are."""
        return self._lost_with(self.setup)

    @property
    def _agrees(self) -> bool:
        """Whether the replay loses about as much as was lost."""
        if self.measured_s <= 0 or self.lost_s <= 0:
            return False
        return max(self.measured_s / self.lost_s, self.lost_s / self.measured_s) <= MOST_OFF

    def _lost_with(self, setup: Setup) -> float:
        seen = replay_requests(self.traffic, setup, self._cost, drafting=drafting_of(setup.drafts))
        return lost_in_replay_s(seen, self.traffic, self.slo, self.until_s)

    def _cost(self, work: StepWork) -> float:
        return self.costs.of(work).cost(work)

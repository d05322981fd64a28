"""A window replayed with its own requests and step costs, to see what a changed setting would spare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from statistics import median

from phasewise.core.latency import chunk_gaps_s
from phasewise.core.slo import Slo
from phasewise.core.timeline import Outcome, Timeline
from phasewise.costs.fit.step import StepWork, prefilling
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.finding import Phase
from phasewise.diagnosis.predict.costs import Costs
from phasewise.diagnosis.predict.replay import (
    lost_by_phase,
    lost_in_replay,
    replay_requests,
)
from phasewise.diagnosis.predict.setup import Setup, Unpredictable, changed, drafting_of
from phasewise.diagnosis.predict.traffic import Traffic, recorded_traffic

FEWEST_REQUESTS = 6
MOST_TOKENS = 12_000
"""Of longer windows the latest requests are replayed, with about so many output tokens."""
MOST_OFF = 2.5
"""A replay whose loss differs from the measured one by more than this factor shows nothing."""
TOO_FEW_TO_EXTRAPOLATE = 2
"""With a cap of so many streams, nobody has seen what more of them would cost."""
PHASES = (Phase.START, Phase.STREAM)


def window_replay(
    timelines: Sequence[Timeline],
    setup: Setup,
    costs: Costs,
    slo: Slo,
    ended_unix_s: float,
    measured_s: Mapping[Phase, float] | None = None,
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
        sum((measured_s or _measured(latest, slo)).values()),
    )


def _latest(timelines: Sequence[Timeline]) -> list[Timeline]:
    """The requests that can be replayed; of many the latest."""
    usable = [it for it in timelines if it.prompt_tokens and it.output_tokens and it.content_times_s]
    usable += _with_usual_lengths([it for it in timelines if it.outcome is Outcome.UNFINISHED], usable)
    usable.sort(key=lambda it: it.started_unix_s)
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
        for lengths in ([it.prompt_tokens or 1 for it in ended], [it.output_tokens or 1 for it in ended])
    )
    cached = sum(it.cached_tokens or 0 for it in ended) / sum(it.prompt_tokens or 1 for it in ended)
    sized = [it.prompt_tokens / it.prompt_bytes for it in ended if it.prompt_tokens and it.prompt_bytes]
    for it in unfinished:
        tokens = round(it.prompt_bytes * median(sized)) if sized and it.prompt_bytes else prompt
        yield replace(
            it,
            prompt_tokens=max(1, it.prompt_tokens or tokens),
            cached_tokens=round(cached * tokens) if it.cached_tokens is None else it.cached_tokens,
            output_tokens=max(output, len(it.content_times_s) + 1),
        )


def _measured(timelines: Sequence[Timeline], slo: Slo) -> dict[Phase, float]:
    seen = (
        (it.content_times_s[0], chunk_gaps_s(it), _so_far(it)) if it.content_times_s else (it.ended_s, (), 1)
        for it in timelines
    )
    return dict(zip(PHASES, lost_by_phase(seen, slo), strict=True))


def _so_far(timeline: Timeline) -> int:
    """The tokens that have come."""
    if timeline.outcome is Outcome.UNFINISHED:
        return len(timeline.content_times_s)
    return timeline.output_tokens or 1


@dataclass(frozen=True)
class WindowReplay:
    """A window that is replayed with one setting after the other.

    It ends at `until_s`; `measured_s` was lost.
    """

    traffic: Traffic
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
        if chunk > before.max_num_batched_tokens and not self._knows(min(chunk, self.traffic.longest_tokens)):
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

    def _knows(self, tokens: int) -> bool:
        """Whether steps with so many prompt tokens were seen."""
        return self.costs.of(prefilling(tokens)).seen

    def _lost_with(self, setup: Setup) -> float:
        seen = replay_requests(self.traffic, setup, self._cost, drafting=drafting_of(setup.drafts))
        return sum(lost_in_replay(seen, self.traffic, self.slo, self.until_s))

    def _cost(self, work: StepWork) -> float:
        return self.costs.of(work).cost(work)

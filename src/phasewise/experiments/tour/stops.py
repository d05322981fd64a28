"""The five stops of the tour: what changes, what is predicted of both phases and why, and what came. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median

from phasewise.core.latency import tpot_s, ttft_s
from phasewise.core.timeline import Timeline
from phasewise.loadgen.workload.plan import Plan
from phasewise.loadgen.workload.scenes import at_once, joined, one_by_one, twice

PROMPT, ANSWER = 192, 16
"""The tokens of the request that all others are compared with,"""
TIMES, BATCH, STREAMS = 4, 8, 4
"""and how many times as long, and how many at once, others are."""
QUESTION = 16
"""A prompt that takes hardly longer than a token."""
STREAM_ANSWER = 64
UNDER_WAY = 4
"""A stream with so many tokens is under way,"""
LATE_S = 1.0
"""which takes it so long where nothing was measured yet."""
SAME = (0.75, 1.35)
"""A ratio within these bounds is no change: a few requests on a busy machine differ by as much."""
BUSY = "the machine was busy"

Times = Mapping[str, float]
"""Figures in seconds, or tokens per second, by name."""
TTFT, TPOT, REQUEST, THROUGHPUT, GAP = "TTFT", "TPOT", "whole request", "tokens/s", "longest gap"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths that an engine's context allows, and after how long a few streams are under way."""

    prompt: int = PROMPT
    answer: int = ANSWER
    late_s: float = LATE_S

    @property
    def long_prompt(self) -> int:
        """The prompt that is so many times as long."""
        return TIMES * self.prompt


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure divided by that of the request that it is compared with lies within these bounds, because.

    `lower` and `higher` may explain one that does not; `against` names what it is compared with.
    """

    figure: str
    low: float
    high: float
    why: str
    lower: str = BUSY
    higher: str = BUSY
    against: str = "the first requests"


@dataclass(frozen=True, slots=True)
class Stop:
    """What is changed, in words, its requests, and what is predicted."""

    title: str
    plan: Callable[[Sizes, Random], Plan]
    predictions: tuple[Prediction, ...]


MATH_BINDS = "math binds this engine's decode too, as on few cores, or fewer than eight ran at once"
FIRST_TIME = "the first time"
FIRST = Stop("one request at a time", lambda sizes, rng: one_by_one(sizes.prompt, sizes.answer, 3, rng), ())
STOPS = (
    Stop(
        "a prompt four times as long",
        lambda sizes, rng: one_by_one(sizes.long_prompt, sizes.answer, 3, rng),
        (
            Prediction(
                TTFT,
                0.6 * TIMES,
                1.5 * TIMES,
                "prefill computes every token of the prompt",
                lower="a part of TTFT is the same for every prompt",
                higher="attention grows with the square of the prompt",
            ),
            Prediction(
                TPOT,
                0.75,
                2.0,
                "decode computes one token at a time and only has a longer KV cache to read",
                higher="reading that cache is most of a token on this engine",
            ),
        ),
    ),
    Stop(
        "an answer four times as long",
        lambda sizes, rng: one_by_one(sizes.prompt, TIMES * sizes.answer, 3, rng),
        (
            Prediction(TTFT, *SAME, "the first token does not wait for the others"),
            Prediction(TPOT, *SAME, "every token takes the same step"),
            Prediction(
                REQUEST,
                1.3,
                1.1 * TIMES,
                "each further token adds one more step",
                lower="prefill is most of such a request",
            ),
        ),
    ),
    Stop(
        "eight short questions at once",
        lambda sizes, rng: at_once(one_by_one(QUESTION, TIMES * sizes.answer, BATCH, rng)),
        (
            Prediction(
                TPOT,
                1.0,
                2.5,
                "a step reads the weights once for all eight streams",
                higher=MATH_BINDS,
            ),
            Prediction(
                THROUGHPUT,
                0.3 * BATCH,
                1.05 * BATCH,
                "eight tokens a step for little more than the price of one",
                lower=MATH_BINDS,
            ),
        ),
    ),
    Stop(
        "the same prompt again",
        lambda sizes, rng: twice(one_by_one(sizes.long_prompt, sizes.answer, 1, rng)),
        (
            Prediction(
                TTFT,
                0.0,
                0.5,
                "the prefix cache has what was computed, and only the last tokens are left",
                higher="the prefix cache is off, or holds whole blocks only",
                against=FIRST_TIME,
            ),
            Prediction(TPOT, *SAME, "decode reads the same KV cache as before", against=FIRST_TIME),
        ),
    ),
    Stop(
        "a long prompt amid four streams",
        lambda sizes, rng: joined(
            one_by_one(QUESTION, STREAM_ANSWER, STREAMS, rng),
            one_by_one(sizes.long_prompt, sizes.answer, 1, rng),
            sizes.late_s,
        ),
        (
            Prediction(
                GAP,
                4.0,
                1000.0,
                "streams wait while the prompt is computed, unless it is cut into chunks",
                lower="chunks are so small that streams hardly wait",
                against="a usual token",
            ),
            Prediction(
                TTFT,
                0.8,
                2.5,
                "the prompt shares its steps with streams, which cost little",
                higher="the engine admits it late or computes it in small chunks",
                against="the same length alone",
            ),
        ),
    ),
)
"""In the order in which they teach: each needs what the one before it has shown."""
LONGER_PROMPT, _, EIGHT_AT_ONCE, SAME_AGAIN, AMID_STREAMS = STOPS


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction, both figures, and the ratio; None if the figure was not measured."""

    prediction: Prediction
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """How many times as much it is."""
        return self.after / self.before if self.before and self.after is not None else None

    @property
    def held(self) -> bool | None:
        """Whether the prediction was right; None if it could not be tried."""
        ratio = self.ratio
        return None if ratio is None else self.prediction.low <= ratio <= self.prediction.high


@dataclass(frozen=True, slots=True)
class Played:
    """A stop with its requests."""

    stop: Stop
    timelines: tuple[Timeline, ...]


def outcomes(first: Played, others: Sequence[Played]) -> tuple[tuple[Played, tuple[Outcome, ...]], ...]:
    """What came of every prediction."""
    alone, found = figures(first.timelines), []
    long_alone: Times = {}
    for played in others:
        before, after = _compared(played, alone, long_alone)
        if played.stop is LONGER_PROMPT:
            long_alone = after
        found.append(
            (
                played,
                tuple(
                    Outcome(it, before.get(it.figure), after.get(it.figure)) for it in played.stop.predictions
                ),
            )
        )
    return tuple(found)


def _compared(played: Played, alone: Times, long_alone: Times) -> tuple[Times, Times]:
    """The figures that a stop's are compared with, and its own."""
    in_order = sorted(played.timelines, key=lambda it: (it.started_unix_s, it.prompt_tokens or 0))
    if played.stop is SAME_AGAIN:
        return figures(in_order[:1]), figures(in_order[1:])
    if played.stop is AMID_STREAMS:
        *streams, newcomer = sorted(in_order, key=lambda it: it.prompt_tokens or 0)
        gaps = [gap_s for it in streams if (gap_s := _longest_gap_s(it, newcomer.started_unix_s))]
        after = {**figures([newcomer]), **({GAP: median(gaps)} if gaps else {})}
        return {**long_alone, GAP: alone.get(TPOT, 0.0)}, after
    return alone, figures(in_order)


def _longest_gap_s(stream: Timeline, since_unix_s: float) -> float | None:
    """The longest wait for a token that ended after this time; None if it was not streaming then."""
    times_s, since_s = stream.content_times_s, since_unix_s - stream.started_unix_s
    gaps = [later - sooner for sooner, later in pairwise(times_s) if later > since_s]
    return max(gaps) if gaps and times_s[0] <= since_s else None


def under_way_s(timelines: Sequence[Timeline]) -> float:
    """After how long all of these streams were under way."""
    return max((it.content_times_s[:UNDER_WAY][-1] for it in timelines if it.content_times_s), default=LATE_S)


def figures(timelines: Sequence[Timeline]) -> dict[str, float]:
    """What these requests took, at the median."""
    ended = [it for it in timelines if it.content_times_s]
    found = {
        TTFT: [value for it in ended if (value := ttft_s(it)) is not None],
        TPOT: [value for it in ended if (value := tpot_s(it)) is not None],
        REQUEST: [it.ended_s for it in ended],
    }
    times = {name: median(values) for name, values in found.items() if values}
    tokens = sum(it.output_tokens or len(it.content_times_s) for it in ended)
    if ended and tokens:
        since = min(it.started_unix_s + it.content_times_s[0] for it in ended)
        until = max(it.started_unix_s + it.content_times_s[-1] for it in ended)
        # One after another, the time between two requests is not decoding.
        alone_s = sum(it.content_times_s[-1] - it.content_times_s[0] for it in ended)
        times[THROUGHPUT] = tokens / max(min(until - since, alone_s), 1e-9)
    return times

"""What a client alone can observe of an engine's steps, for engines without the step recorder.

Every step gives each stream one token, so the gaps between a stream's chunks are steps. A prompt that runs
alone shows only the sum of its steps, including the front end. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import ceil
from statistics import median

from phasewise.benchmark.calibrate.scenes import Heard, Played
from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepWork, chunk_pairs, decoding, prefilling

LONG_GAP = 1.5
"""A gap this many times the median one, after a prompt was sent, contained a chunk of it."""
WAY_BACK_S = 0.005
"""The chunks of one step reach their readers some milliseconds apart."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """One step as the first stream observed it: its times, and that stream's number of tokens before it."""

    started_s: float
    ended_s: float
    written: int

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class _Passage:
    """A prompt among streams: the gaps from its sending to its first token; the last `chunks` carried it."""

    prompt_tokens: int
    gaps: tuple[_Gap, ...]
    chunks: int


def heard_in_full(played: Sequence[Played]) -> list[Played]:
    """The scenes in which every token arrived in its own chunk; the steps of others are unknown."""
    return [each for each in played if all(heard.complete for heard in (*each.streams, *each.arrivals))]


def client_observations(played: Sequence[Played]) -> tuple[Observation, ...]:
    """The steps that clients observed, from all complete scenes."""
    whole = heard_in_full(played)
    chunk_tokens = _chunk_tokens([passage for each in whole for passage in _passages(each)])
    found: list[Observation] = []
    for each in whole:
        if each.streams:
            found += _among_streams(each)
        else:
            found += [_alone(heard, chunk_tokens) for heard in each.arrivals]
    return tuple(found)


def _alone(heard: Heard, chunk_tokens: int | None) -> Observation:
    """A prompt that ran alone, from sending to its first token."""
    chunks = 1 if chunk_tokens is None else ceil(heard.prompt_tokens / chunk_tokens)
    works = tuple(prefilling(tokens, context) for tokens, context in _chunks(heard.prompt_tokens, chunks))
    first_s = heard.times_s[0]
    return Observation(works, first_s - heard.sent_s, through_front_end=True, at_s=first_s)


def _among_streams(played: Played) -> Iterator[Observation]:
    """The steps in which all streams wrote, and those that also carried a prompt."""
    passages = _passages(played)
    for passage in passages:
        yield _with_prompt(played, passage)
    # Between a prompt's sending and its first token, any step may carry a part of it.
    waits_s = [(arrival.sent_s, arrival.times_s[0] + WAY_BACK_S) for arrival in played.arrivals]
    for gap in _single_steps(_common_gaps(played.streams)):
        if not any(sent_s < gap.ended_s <= first_s for sent_s, first_s in waits_s):
            yield Observation((_decode_work(played, gap),), gap.seconds, at_s=gap.ended_s)


def _single_steps(gaps: Sequence[_Gap]) -> Iterator[_Gap]:
    """The gaps that are one step each: if two chunks arrived in one read, the first gap covers two steps."""
    for gap, following in zip_longest(gaps, gaps[1:]):
        if gap.seconds > 0 and (following is None or following.seconds > 0):
            yield gap


def _passages(played: Played) -> list[_Passage]:
    """How each prompt was computed, as long as all streams were writing."""
    gaps = _common_gaps(played.streams) if played.streams else []
    if not gaps:
        return []
    usual_s = median(gap.seconds for gap in gaps)
    slack_s = min(WAY_BACK_S, usual_s / 2)
    found = []
    for arrival in played.arrivals:
        first_s = arrival.times_s[0]
        own = tuple(gap for gap in gaps if arrival.sent_s < gap.ended_s <= first_s + slack_s)
        if own and own[-1].ended_s >= first_s - slack_s:
            found.append(_Passage(arrival.prompt_tokens, own, _chunks_in(own, usual_s)))
    return found


def _chunks_in(own: Sequence[_Gap], usual_s: float) -> int:
    """How many of these gaps held a chunk: once a prompt has begun, every step carries some of it."""
    long = (index for index, gap in enumerate(own) if gap.seconds > LONG_GAP * usual_s)
    return len(own) - next(long, len(own) - 1)


def _with_prompt(played: Played, passage: _Passage) -> Observation:
    """The steps from a prompt's sending to its first token: ordinary ones, then those with its chunks.

    The step that was running when it was sent does not carry it. How much each of the others carried is
    unknown: even shares are close enough, as costs are summed over all of them.
    """
    own = passage.gaps
    works = [_decode_work(played, gap) for gap in own[: -passage.chunks]]
    shares = _chunks(passage.prompt_tokens, passage.chunks)
    for gap, (tokens, context) in zip(own[-passage.chunks :], shares, strict=True):
        streams = _decode_work(played, gap)
        works.append(
            StepWork(
                prompt_tokens=tokens,
                decode_tokens=streams.decode_tokens,
                requests=streams.requests + 1,
                attention_token_pairs=chunk_pairs(tokens, context),
                kv_read_tokens=streams.kv_read_tokens,
            )
        )
    return Observation(tuple(works), own[-1].ended_s - own[0].started_s, at_s=own[-1].ended_s)


def _chunk_tokens(passages: Sequence[_Passage]) -> int | None:
    """The engine's chunk size as far as it was observed; None if no prompt was split.

    A prompt that seems split into chunks smaller than another, unsplit prompt was delayed by something else.
    """
    whole_tokens = max((each.prompt_tokens for each in passages if each.chunks == 1), default=0)
    cut = [
        each for each in passages if each.chunks > 1 and each.prompt_tokens > whole_tokens * (each.chunks - 1)
    ]
    return max((ceil(each.prompt_tokens / each.chunks) for each in cut), default=None)


def _common_gaps(streams: Sequence[Heard]) -> list[_Gap]:
    """The first stream's gaps while all streams were writing."""
    begin_s = max(stream.times_s[0] for stream in streams)
    end_s = min(stream.times_s[-1] for stream in streams)
    return [
        _Gap(before_s, after_s, written)
        for written, (before_s, after_s) in enumerate(pairwise(streams[0].times_s), start=1)
        if before_s >= begin_s - WAY_BACK_S and after_s <= end_s + WAY_BACK_S
    ]


def _decode_work(played: Played, gap: _Gap) -> StepWork:
    # Streams that started together have written nearly as much as the first.
    return decoding([stream.prompt_tokens + gap.written for stream in played.streams])


def _chunks(prompt_tokens: int, count: int) -> Iterator[tuple[int, int]]:
    """Even chunks of a prompt, each with the number of tokens computed before it."""
    done = 0
    for number in range(1, count + 1):
        upto = prompt_tokens * number // count
        yield upto - done, done
        done = upto

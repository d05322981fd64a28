"""What a client alone can tell of an engine's steps, for engines without the step recorder.

Every step gives each stream one token, so the gaps between a stream's chunks are steps. A prompt alone shows
only all of its steps together, with the way through the front end. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median

from phasewise.calibrate.played import Heard, Played
from phasewise.costs.observation import Observation
from phasewise.costs.step_work import StepWork, chunk_pairs, decoding, prefilling

LONG_GAP = 2.5
"""A gap so many times the usual one held a chunk of a prompt."""
WAY_BACK_S = 0.005
"""The chunks of one step reach their readers some milliseconds apart."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """One step as the first stream saw it: its times, and how many tokens that stream had before it."""

    started_s: float
    ended_s: float
    written: int


def client_observations(played: Sequence[Played]) -> tuple[Observation, ...]:
    """The steps that clients saw, from all scenes."""
    chunk_tokens = _chunk_tokens(played)
    found: list[Observation] = []
    for each in played:
        if each.streams:
            found += _among_streams(each)
        else:
            found += [_alone(heard, chunk_tokens) for heard in each.arrivals if heard.complete]
    return tuple(found)


def _alone(heard: Heard, chunk_tokens: int | None) -> Observation:
    """A prompt that had the engine for itself, from sending to its first token."""
    chunks = 1 if chunk_tokens is None else ceil(heard.prompt_tokens / chunk_tokens)
    works = tuple(prefilling(tokens, context) for tokens, context in _chunks(heard.prompt_tokens, chunks))
    first_s = heard.times_s[0]
    return Observation(works, first_s - heard.sent_s, through_front_end=True, at_s=first_s)


def _among_streams(played: Played) -> Iterator[Observation]:
    """The steps in which all streams wrote, and those that a prompt among them took part in."""
    if not all(stream.complete for stream in played.streams):
        return
    gaps = _common_gaps(played.streams)
    usual_s = _usual_gap_s(gaps)
    taken: set[_Gap] = set()
    for arrival in played.arrivals:
        own = [
            gap
            for gap in gaps
            if arrival.complete and arrival.sent_s < gap.ended_s <= arrival.times_s[0] + WAY_BACK_S
        ]
        taken.update(own)
        if own and own[-1].ended_s >= arrival.times_s[0] - WAY_BACK_S:
            yield _with_prompt(played, arrival, own, usual_s)
    for gap in gaps:
        if gap not in taken:
            yield Observation((_decode_work(played, gap),), gap.ended_s - gap.started_s, at_s=gap.ended_s)


def _with_prompt(played: Played, arrival: Heard, own: Sequence[_Gap], usual_s: float) -> Observation:
    """The steps from a prompt's sending to its first token: ordinary ones, then those with its chunks.

    The step under way when it was sent does not carry it. Which one of the last carried how much cannot be
    seen, and need not: costs are added up over all of them.
    """
    chunks = _chunks_in(own, usual_s)
    works = [_decode_work(played, gap) for gap in own[:-chunks]]
    for gap, (tokens, context) in zip(own[-chunks:], _chunks(arrival.prompt_tokens, chunks), strict=True):
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


def _chunks_in(own: Sequence[_Gap], usual_s: float) -> int:
    long = sum(gap.ended_s - gap.started_s > LONG_GAP * usual_s for gap in own)
    return max(long, 1)


def _chunk_tokens(played: Sequence[Played]) -> int | None:
    """The engine's chunk size as far as it was seen: the largest share of a prompt that was cut up."""
    sizes: list[int] = []
    for each in played:
        if not all(stream.complete for stream in each.streams) or not each.streams:
            continue
        gaps = _common_gaps(each.streams)
        usual_s = _usual_gap_s(gaps)
        for arrival in each.arrivals:
            if not arrival.complete:
                continue
            own = [gap for gap in gaps if arrival.sent_s < gap.ended_s <= arrival.times_s[0] + WAY_BACK_S]
            if (chunks := _chunks_in(own, usual_s)) > 1:
                sizes.append(ceil(arrival.prompt_tokens / chunks))
    return max(sizes, default=None)


def _common_gaps(streams: Sequence[Heard]) -> list[_Gap]:
    """The first stream's gaps while all streams were writing."""
    begin_s = max(stream.times_s[0] for stream in streams)
    end_s = min(stream.times_s[-1] for stream in streams)
    return [
        _Gap(before_s, after_s, written)
        for written, (before_s, after_s) in enumerate(pairwise(streams[0].times_s), start=1)
        if before_s >= begin_s - WAY_BACK_S and after_s <= end_s + WAY_BACK_S
    ]


def _usual_gap_s(gaps: Sequence[_Gap]) -> float:
    return median([gap.ended_s - gap.started_s for gap in gaps]) if gaps else 0.0


def _decode_work(played: Played, gap: _Gap) -> StepWork:
    # Streams that started together have written nearly as much as the first.
    return decoding([stream.prompt_tokens + gap.written for stream in played.streams])


def _chunks(prompt_tokens: int, count: int) -> Iterator[tuple[int, int]]:
    """Even chunks of a prompt, each with what was computed before it."""
    done = 0
    for number in range(1, count + 1):
        upto = prompt_tokens * number // count
        yield upto - done, done
        done = upto

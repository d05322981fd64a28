"""What a picture of one block needs: a stream's tokens, the long prompts, and what each engine did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from phasewise.clients.step_feed import StepFeed
from phasewise.core.steps import EngineStep, TimedStep, logs_by_rank

from .load import Block

BEFORE_S = 60.0
"""How far before the window steps are read: a step's beginning is told by those before it."""
JOIN_S = 0.02
"""Steps of one kind that follow each other within this time are drawn as one stretch."""
PREFILL, DECODE = "prefill", "decode"
FEW_PROMPT_TOKENS = 64
"""A step with no more prompt tokens is hardly longer than one without, and is drawn as a decode step."""


async def traced(block: Block, steps_urls: Mapping[str, str]) -> dict[str, Any]:
    """The block as plain JSON types, in seconds from its window's begin."""
    lanes, kv_transfers = {}, []
    for name, url in steps_urls.items():
        feed = StepFeed(url, since_unix_s=block.began_unix_s - BEFORE_S)
        try:
            steps = (await feed.poll()).steps
        finally:
            feed.close()
        lanes[name] = stretches(steps, block)
        kv_transfers += [step.ended_unix_s - block.began_unix_s for step in steps if step.transfers]
    return {
        "ended_s": round(block.ended_s, 3),
        "tokens_s": [round(at_s, 3) for at_s in most_disturbed(block) if at_s > 0.0],
        "longs_s": [[round(it.sent_s, 3), round(it.first_s, 3)] for it in block.longs],
        "lanes": lanes,
        "kv_transfers_s": [round(at_s, 3) for at_s in kv_transfers if 0.0 <= at_s <= block.ended_s],
    }


def most_disturbed(block: Block) -> Sequence[float]:
    """The token times of the stream with the longest gap."""
    return max(block.token_times_s, key=longest_gap_s)


def longest_gap_s(times_s: Sequence[float]) -> float:
    """The longest gap that ended within the window."""
    return max((after - before for before, after in pairwise(times_s) if after > 0.0), default=0.0)


def stretches(steps: Sequence[EngineStep], block: Block) -> list[list[Any]]:
    """When an engine read prompts and when it wrote tokens: [from, to, which], steps of a kind joined."""
    joined: list[list[Any]] = []
    timed = (item for log in logs_by_rank(steps) for item in log.steps)
    for start_s, end_s, kind in spans(timed, block):
        if joined and joined[-1][2] == kind and start_s - joined[-1][1] < JOIN_S:
            joined[-1][1] = end_s
        else:
            joined.append([start_s, end_s, kind])
    return [[round(start_s, 3), round(end_s, 3), kind] for start_s, end_s, kind in joined]


def spans(timed: Iterable[TimedStep], block: Block) -> Iterable[tuple[float, float, str]]:
    """Steps with contents and a known beginning, within the window."""
    for item in timed:
        if item.started_unix_s is None or item.step.prompt_tokens is None:
            continue
        start_s = max(item.started_unix_s - block.began_unix_s, 0.0)
        end_s = item.step.ended_unix_s - block.began_unix_s
        if 0.0 < end_s <= block.ended_s:
            yield start_s, end_s, PREFILL if item.step.prompt_tokens > FEW_PROMPT_TOKENS else DECODE

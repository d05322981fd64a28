"""A short synthetic load for an idle engine: ten requests, at most five at once.

Three scenes: short prompts one after another, one long prompt twice, and a long prompt that arrives while
four streams are running. Prompts begin with words that are new in every run, so that nothing of an earlier
run is in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import uuid4

from phasewise.benchmark.generator import LoadGenerator, RunLimits
from phasewise.benchmark.target import find_target, fit_prompts
from phasewise.benchmark.workload.plan import CONTEXT_MARGIN_TOKENS, CONTEXT_TOKENS, Plan
from phasewise.benchmark.workload.scenes import joined, one_by_one, twice
from phasewise.clients.http_client import HttpClient
from phasewise.core.timeline import Timeline

SHORT_TOKENS = 64
LONG_TOKENS = 1_536
STREAMS = 4
STREAM_OUTPUT_TOKENS = 48
LONG_ARRIVES_AT_S = 1.0
REQUEST_LIMIT_S = 120.0
PROBE_REQUESTS = 3 + 2 + STREAMS + 1

OnScene = Callable[[str], None]


async def probe(
    url: str,
    model: str | None,
    api_key: str | None,
    seed: int,
    on_scene: OnScene,
    admin_key: str | None = None,
) -> tuple[Timeline, ...]:
    """Run the three scenes and return the timelines of all their requests.

    The seed repeats lengths, times and words, except for the first words of every prompt. A gateway shows its
    engines' tokenizer for the admin key.
    """
    client = HttpClient(url)
    rng = Random(seed)  # noqa: S311 - prompts, not secrets
    try:
        target = await find_target(client, model, api_key, admin_key)
        longest = (target.context_tokens or CONTEXT_TOKENS) - STREAM_OUTPUT_TOKENS - CONTEXT_MARGIN_TOKENS
        timelines: list[Timeline] = []
        for title, plan in _scenes(min(LONG_TOKENS, longest), rng):
            on_scene(title)
            fitted = await fit_prompts(client, target, plan, rng)
            limits = RunLimits(request_s=REQUEST_LIMIT_S, in_flight=STREAMS + 1)
            generator = LoadGenerator(client, target, fitted, f"probe-{uuid4().hex[:12]}", limits)
            timelines += (await generator.run()).timelines
        return tuple(timelines)
    finally:
        client.close()


def _scenes(long_tokens: int, rng: Random) -> tuple[tuple[str, Plan], ...]:
    return (
        ("3 short prompts, one after another", one_by_one(SHORT_TOKENS, 24, 3, rng)),
        (f"one prompt of {long_tokens} tokens, twice", twice(one_by_one(long_tokens, 8, 1, rng))),
        (
            f"{STREAMS} streams, joined by a prompt of {long_tokens} tokens",
            joined(
                one_by_one(SHORT_TOKENS, STREAM_OUTPUT_TOKENS, STREAMS, rng),
                one_by_one(long_tokens, 8, 1, rng),
                LONG_ARRIVES_AT_S,
            ),
        ),
    )

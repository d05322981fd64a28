"""What was around the requests: how each engine is set up, how full it was, what its host gave it.

Everything is None where nobody could tell. Gathering it is observe's; the rules read it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReading:
    """An engine's own gauges at one moment: what a crowd is known from where no step record is."""

    at_unix_s: float
    running: int
    waiting: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """How full an engine was, over the steps of the window (or over readings of its gauges).

    Of the time in which requests waited, `kv_full_share` is the part in which the KV cache had no room for
    another ordinary request, and `capped_share` the part in which it had room and the engine ran as many as
    it ever did. `growth` is how many more requests were in the engine in the last third than in the first.
    """

    running_mean: float
    running_max: int
    waiting_mean: float
    waiting_max: int
    kv_usage_mean: float
    kv_usage_max: float
    waited_share: float
    kv_full_share: float
    capped_share: float
    growth: float


@dataclass(frozen=True, slots=True)
class StepShape:
    """What an engine's steps were like, from its recorder.

    `busy_share` is the part of the window in which a step ran. `chunk_p50_tokens` is over steps that carried
    prompt tokens. `budget_tokens` is the most tokens of any step, where several prompts were cut at it.
    `decode_step_p50_s` is over steps without prompt tokens, `lone_step_s` over those of at most two streams.
    """

    steps: int
    busy_share: float
    chunk_p50_tokens: float | None
    budget_tokens: int | None
    decode_step_p50_s: float | None
    lone_step_s: float | None
    tokens_per_stream_step: float | None


@dataclass(frozen=True, slots=True)
class Drafts:
    """Speculation in the window: how often the engine guessed, how many tokens, how many were right."""

    drafts: float
    drafted_tokens: float
    accepted_tokens: float


@dataclass(frozen=True, slots=True)
class EngineSurroundings:
    """One engine in the window.

    `age_s` is how long its process had lived when the window began. `front_end_cores` are the cores its API
    process kept busy; `cpu_wait_share` is how much of the time that it was at work it stood still for a core
    that others had, and `cpu_source` says how that is known. `round_trip_s` is the shortest time of an
    empty request from here to it and back. `weights_read_s` is how long its machine needs to read the model's
    weights once. Of several data-parallel ranks `crowd` and `steps` are those of the fullest, and
    `ranks_busy_share` is the sum of the parts of the window in which each computed. `fetched_tokens` are
    those of prompts whose KV came from another engine, `own_hit_tokens` those that its own cache had.
    """

    name: str
    requests: int
    kv_tokens: int | None = None
    block_tokens: int | None = None
    prefix_cache_on: bool | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    preemptions: float | None = None
    crowd: Crowd | None = None
    steps: StepShape | None = None
    drafts: Drafts | None = None
    age_s: float | None = None
    front_end_cores: float | None = None
    cpu_wait_share: float | None = None
    cpu_source: str | None = None
    host_busy_share: float | None = None
    round_trip_s: float | None = None
    weights_read_s: float | None = None
    model: str | None = None
    ranks_busy_share: float | None = None
    fetched_tokens: float | None = None
    own_hit_tokens: float | None = None

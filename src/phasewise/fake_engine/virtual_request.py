"""What a virtual engine is built of and asked for, and what it tells of its steps.

What happens between the two is virtual_engine.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.costs.step_work import StepWork
from phasewise.errors import ConfigError
from phasewise.fake_engine.kv_connector import RemoteKv
from phasewise.model.steps import EngineStep, FinishedRequest


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The sizes of an engine, under vLLM's names; the defaults are those of the demo engine on a CPU."""

    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 128
    total_blocks: int = 364
    mean_output_tokens: int = 512
    """Answers that may end by themselves do so after this many tokens on average."""
    prefix_cache: bool = True
    """Whether blocks of one request are found by others that begin with the same tokens."""

    def __post_init__(self) -> None:
        smallest = min(self.max_num_seqs, self.block_size, self.total_blocks, self.mean_output_tokens)
        if smallest < 1 or self.max_model_len < 2:
            raise ConfigError("an engine's sizes must be positive", hint="max_model_len must be at least 2")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is below "
                f"max_num_seqs={self.max_num_seqs}",
                hint="a step must have room for one token of every running request",
            )
        if self.total_blocks * self.block_size < self.max_model_len:
            raise ConfigError(
                f"{self.total_blocks} blocks of {self.block_size} tokens hold less than one request of "
                f"max_model_len={self.max_model_len}",
                hint="raise total_blocks or lower max_model_len",
            )


@dataclass(frozen=True, slots=True)
class VirtualRequest:
    """What the engine is asked for. `arrived_s` is when the front end got it.

    `request_id` is unique here; `client_id` is what records call the request, and clients may repeat theirs.
    With `keep_kv` another engine is to go on with it; with `remote_kv` another has computed its prompt. An
    engine without a connector knows neither and computes what it is asked for.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_tokens: int
    arrived_s: float
    min_tokens: int = 0
    ignore_eos: bool = False
    cache_salt: str = ""
    client_id: str | None = None
    keep_kv: bool = False
    remote_kv: RemoteKv | None = None


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One token of one request; `gap_s` counts from the token before it, or from arrival for the first.

    The last token of a request comes with the account of it, and with the blocks that are kept for another
    engine to read.
    """

    request_id: str
    token_id: int
    index: int
    gap_s: float
    finished: FinishedRequest | None = None
    kept_blocks: tuple[int, ...] | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the request ended with this token, if it did."""
        return None if self.finished is None else self.finished.reason


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in a step: true from `step.ended_unix_s` on, and not before.

    `queried_tokens` and `hit_tokens` are of requests scheduled for the first time, `fetched_tokens` what was
    asked of other engines for them; those that begin with `begun` are of requests that got their first token.
    `deferred` requests wait for KV from elsewhere.
    """

    step: EngineStep
    duration_s: float
    emitted: tuple[EmittedToken, ...]
    work: StepWork
    queried_tokens: int
    hit_tokens: int
    begun_prompt_tokens: int
    begun_cached_tokens: int
    begun_fetched_tokens: int = 0
    fetched_tokens: int = 0
    deferred: int = 0

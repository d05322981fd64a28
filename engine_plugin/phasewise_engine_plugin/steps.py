"""Reads vLLM's statistics objects of one step by attribute, without importing vLLM.

Only this file knows their names; it returns the ring's tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phasewise_engine_plugin.ring import FinishedRequest, StepTuple, Transfer


def step_from_stats(
    scheduler_stats: Any,
    iteration_stats: Any,
    engine_index: int,
    last_load: tuple[int, int, float],
    clock: Callable[[], float],
) -> StepTuple:
    """One step as a tuple; `clock` is read only if the step had no output and so no time of its own."""
    finished: tuple[FinishedRequest, ...] = ()
    if iteration_stats is None:
        # The middle chunks of a long prompt: a step without output.
        at, preempted, first_tokens = clock(), 0, 0
    else:
        at = iteration_stats.iteration_timestamp
        preempted = iteration_stats.num_preempted_reqs
        first_tokens = len(iteration_stats.time_to_first_tokens_iter)
        finished = tuple(map(finished_request, iteration_stats.finished_requests))
    running, waiting, kv = last_load
    details = None
    transfers: tuple[Transfer, ...] = ()
    if scheduler_stats is not None:
        running = scheduler_stats.num_running_reqs
        # vLLM counts requests that are deferred separately (KV still in transfer, a LoRA limit).
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        kv = scheduler_stats.kv_cache_usage
        details = scheduler_stats.iteration_details
        transfers = transfers_in(scheduler_stats)
    if details is None:
        return (
            at,
            engine_index,
            None,
            None,
            None,
            None,
            None,
            running,
            waiting,
            kv,
            preempted,
            first_tokens,
            finished,
            transfers,
        )
    return (
        at,
        engine_index,
        details.iteration_index,
        details.num_ctx_tokens,
        details.num_ctx_requests,
        details.num_generation_tokens,
        details.num_generation_requests,
        running,
        waiting,
        kv,
        preempted,
        first_tokens,
        finished,
        transfers,
    )


def computed_nothing(scheduler_stats: Any, iteration_stats: Any) -> bool:
    """Whether an engine that reports its steps' tokens reported none: it polled for a KV transfer."""
    return iteration_stats is None and scheduler_stats.iteration_details is None


def transfers_in(scheduler_stats: Any) -> tuple[Transfer, ...]:
    """The transfers that NIXL saw end in this step; empty if the connector reports them in another form."""
    reported = getattr(scheduler_stats, "kv_connector_stats", None)
    if not reported:
        return ()
    try:
        pairs = zip(reported["transfer_duration"], reported["bytes_transferred"], strict=True)
        return tuple(Transfer(float(seconds), int(moved)) for seconds, moved in pairs)
    except (KeyError, TypeError, ValueError):
        return ()


def finished_request(stats: Any) -> FinishedRequest:
    """A finished request under the id its client saw."""
    return FinishedRequest(
        client_request_id(stats.request_id or ""),
        str(stats.finish_reason),
        stats.num_prompt_tokens,
        stats.num_cached_tokens,
        stats.num_generation_tokens,
        _duration(stats.queued_time),
        _duration(stats.prefill_time),
        _duration(stats.decode_time),
        _duration(stats.e2e_latency),
        stats.num_preemptions,
    )


def client_request_id(engine_request_id: str) -> str:
    """The id in the client's reply, without the number that /v1/completions appends (`cmpl-abc-0`), and
    /v1/responses (`resp_abc_0`).
    """
    for begins, mark in (("cmpl-", "-"), ("resp_", "_")):
        if engine_request_id.startswith(begins):
            base, _, number = engine_request_id.rpartition(mark)
            if number.isdecimal() and base != begins[:-1]:
                return base
    return engine_request_id


def _duration(seconds: float) -> float | None:
    # A phase that was never reached has a zero timestamp and so a negative difference.
    return seconds if seconds >= 0 else None

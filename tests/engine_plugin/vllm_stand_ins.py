"""Objects shaped like vLLM's statistics, for tests that run without vLLM."""

from types import SimpleNamespace


def make_details(prompt_tokens=0, decode_tokens=1, index=7):
    return SimpleNamespace(
        iteration_index=index,
        num_ctx_tokens=prompt_tokens,
        num_ctx_requests=int(prompt_tokens > 0),
        num_generation_tokens=decode_tokens,
        num_generation_requests=decode_tokens,
    )


def make_scheduler_stats(details=None, running=1, waiting=0, deferred=0, kv=0.25, **connector):
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=deferred,
        kv_cache_usage=kv,
        iteration_details=details,
        **connector,
    )


def make_iteration_stats(at=1000.5, first_tokens=0, preempted=0, finished=()):
    return SimpleNamespace(
        iteration_timestamp=at,
        num_preempted_reqs=preempted,
        time_to_first_tokens_iter=[0.1] * first_tokens,
        finished_requests=list(finished),
    )


def make_finished(request_id="chatcmpl-abc", **changes):
    values = {
        "request_id": request_id,
        "finish_reason": "stop",
        "num_prompt_tokens": 20,
        "num_cached_tokens": 16,
        "num_generation_tokens": 5,
        "queued_time": 0.0012345678,
        "prefill_time": 0.08,
        "decode_time": 0.3,
        "e2e_latency": 0.4,
        "num_preemptions": 0,
    }
    return SimpleNamespace(**(values | changes))


def make_nixl_stats(seconds=(), moved_bytes=()):
    """What vLLM's NIXL connector says of a step; it names many counts more."""
    return {
        "transfer_duration": list(seconds),
        "post_duration": [0.0001] * len(seconds),
        "bytes_transferred": list(moved_bytes),
        "num_failed_transfers": [],
    }


def make_step(at=1000.5, finished=(), transfers=()):
    return (at, 0, 7, 0, 0, 1, 1, 1, 0, 0.25, 0, 0, tuple(finished), tuple(transfers))

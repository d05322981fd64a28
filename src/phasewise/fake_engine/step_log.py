"""The step record of a fake engine in the recorder's wire format, version 1.

What a step is and how it is used stand in model/steps.py; this only keeps the last ones and writes lines.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from phasewise.model.steps import STEP_RECORD_VERSION, EngineStep, FinishedRequest

CAPACITY_STEPS = 65_536
RECORDER_NAME = "fake"


class StepLog:
    """The last steps of one incarnation, numbered without a gap."""

    def __init__(self, engine: str, boot: str, capacity_steps: int = CAPACITY_STEPS) -> None:
        self._engine = engine
        self._boot = boot
        self._steps: deque[EngineStep] = deque(maxlen=capacity_steps)
        self._next_seq = 0

    def append(self, step: EngineStep) -> None:
        """Keep a step; its own number must be the next one."""
        if step.seq != self._next_seq:
            raise ValueError(f"step {step.seq} came when {self._next_seq} was due")
        self._steps.append(step)
        self._next_seq += 1

    def lines(self, since: int, limit: int | None, now_unix_s: float) -> Iterator[bytes]:
        """The header line, then the steps from number `since` on."""
        oldest = self._next_seq - len(self._steps)
        yield _line(
            {
                "v": STEP_RECORD_VERSION,
                "recorder": RECORDER_NAME,
                "engine": self._engine,
                "boot": self._boot,
                "pid": os.getpid(),
                "now_unix_s": now_unix_s,
                "oldest": oldest,
                "next": self._next_seq,
                "details": True,
            }
        )
        skipped = max(0, since - oldest)
        end = None if limit is None else skipped + limit
        for step in islice(self._steps, skipped, end):
            yield _line(_step_record(step))


def _step_record(step: EngineStep) -> dict[str, Any]:
    return {
        "v": STEP_RECORD_VERSION,
        "seq": step.seq,
        "at": step.ended_unix_s,
        "engine": step.engine_index,
        "it": step.seq,
        "prompt_tokens": step.prompt_tokens,
        "prompt_requests": step.prompt_requests,
        "decode_tokens": step.decode_tokens,
        "decode_requests": step.decode_requests,
        "running": step.running,
        "waiting": step.waiting,
        "kv": step.kv_usage,
        "preempted": step.preempted,
        "first_tokens": step.first_tokens,
        "finished": [_finished_record(request) for request in step.finished],
    }


def _finished_record(request: FinishedRequest) -> dict[str, Any]:
    return {
        "id": request.request_id,
        "reason": request.reason,
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "queue_s": round(request.queue_s, 6),
        "prefill_s": round(request.prefill_s, 6),
        "decode_s": round(request.decode_s, 6),
        "e2e_s": round(request.e2e_s, 6),
        "preemptions": request.preemptions,
    }


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"

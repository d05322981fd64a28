"""The step record of a fake engine in the recorder's wire format, version 1: the most recent steps."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson

from phasewise.core.steps import (
    ENDED_AS_NAMED,
    ENDED_PHASES,
    RECORDED_AS_NAMED,
    STEP_RECORD_VERSION,
    EngineStep,
    FinishedRequest,
)

CAPACITY_STEPS = 65_536
RECORDER_NAME = "fake"


class RecentSteps:
    """The most recent steps of one incarnation, numbered without gaps."""

    def __init__(self, engine: str, boot: str) -> None:
        self._engine = engine
        self._boot = boot
        self._records: deque[tuple[int, EngineStep]] = deque(maxlen=CAPACITY_STEPS)
        self._next_seq = 0
        self._last_idle: tuple[int, int] | None = None
        self._held_back: EngineStep | None = None

    def append(self, step: EngineStep) -> None:
        """Keep a step under the next number."""
        self._last_idle = None
        if self._held_back is not None:
            self._keep(self._held_back)
            self._held_back = None
        self._keep(step)

    def append_idle(self, now_unix_s: float, running: int, waiting: int, kv_usage: float) -> None:
        """Keep the empty step, without counts, that vLLM reports when it cannot or need not compute.

        Of consecutive ones with the same load, the first and the last are kept.
        """
        step = EngineStep(seq=0, ended_unix_s=now_unix_s, running=running, waiting=waiting, kv_usage=kv_usage)
        if self._last_idle == (running, waiting):
            self._held_back = step
            return
        self.append(step)
        self._last_idle = (running, waiting)

    def _keep(self, step: EngineStep) -> None:
        self._records.append((self._next_seq, step))
        self._next_seq += 1

    def lines(
        self, since: int, limit: int | None, now_unix_s: float, since_unix_s: float | None = None
    ) -> Iterator[bytes]:
        """The header line, then the steps from number `since` that ended at or after `since_unix_s`."""
        oldest = self._next_seq - len(self._records)
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
        if since_unix_s is not None:
            ended_before = bisect_left(self._records, since_unix_s, key=lambda kept: kept[1].ended_unix_s)
            skipped = max(skipped, ended_before)
        end = None if limit is None else skipped + limit
        for seq, step in islice(self._records, skipped, end):
            yield _line(_step_record(seq, step))


def _step_record(seq: int, step: EngineStep) -> dict[str, Any]:
    record: dict[str, Any] = {
        "v": STEP_RECORD_VERSION,
        "seq": seq,
        "at": step.ended_unix_s,
        "engine": step.engine_index,
        "it": None if step.prompt_tokens is None else step.seq,
        "kv": step.kv_usage,
        **{name: getattr(step, name) for name in RECORDED_AS_NAMED},
        "finished": [_finished_record(request) for request in step.finished],
    }
    if step.transfers:
        record["transfers"] = [
            {"s": round(transfer.seconds, 6), "bytes": transfer.kv_bytes} for transfer in step.transfers
        ]
    return record


def _finished_record(request: FinishedRequest) -> dict[str, Any]:
    return {
        "id": request.request_id,
        **{name: getattr(request, name) for name in ENDED_AS_NAMED},
        **{name: round(getattr(request, name), 6) for name in ENDED_PHASES},
    }


def _line(record: dict[str, Any]) -> bytes:
    return orjson.dumps(record) + b"\n"

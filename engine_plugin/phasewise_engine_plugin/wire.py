"""The wire format of steps, version 1: a header line, then a line per step."""

from __future__ import annotations

import json
from typing import Any

from phasewise_engine_plugin.ring import STEP_FIELDS, FinishedRequest, StepTuple

WIRE_VERSION = 1

_compact = json.JSONEncoder(separators=(",", ":")).encode


def header_line(facts: dict[str, Any]) -> bytes:
    """The first line of every reply: the engine, the held steps, and what steps contain."""
    return _compact({"v": WIRE_VERSION, **facts}).encode() + b"\n"


def step_line(seq: int, step: StepTuple) -> bytes:
    """One step as a JSON line."""
    record: dict[str, Any] = {"v": WIRE_VERSION, "seq": seq, **dict(zip(STEP_FIELDS, step, strict=True))}
    record["finished"] = [_finished(request) for request in record["finished"]]
    transfers = record.pop("transfers")
    if transfers:
        # Omitted where there are none, which is nearly always.
        record["transfers"] = [
            {"s": round(transfer.seconds, 6), "bytes": transfer.bytes} for transfer in transfers
        ]
    return _compact(record).encode() + b"\n"


def _finished(request: FinishedRequest) -> dict[str, Any]:
    fields = request._asdict()
    for name in ("queue_s", "prefill_s", "decode_s", "e2e_s"):
        value = fields[name]
        # Microseconds are finer than any clock involved; more digits would be noise.
        fields[name] = None if value is None else round(value, 6)
    return fields

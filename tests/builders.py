"""Plain builders for tests: each makes a valid noun and takes what the test cares about."""

from __future__ import annotations

from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.core.steps import EngineStep, FinishedRequest
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Source, Span, Timeline
from phasewise.core.worker import Worker, WorkerRef

EPOCH_S = 1_800_000_000.0
ENGINE_ID = "chatcmpl-r1"


def make_worker(name="w0", *, model="m", incarnation="1", **fields):
    return Worker(name=name, url=f"http://127.0.0.1/{name}", model=model, incarnation=incarnation, **fields)


def make_request(request_id="r1", **fields):
    return GenerationRequest(
        **{
            "request_id": request_id,
            "endpoint": Endpoint.CHAT,
            "model": "m",
            "arrived_s": 0.0,
            "prompt_bytes": 400,
            **fields,
        }
    )


def make_span(part=Part.PREFILL, seconds=0.1, source=Source.ENGINE_REPORT, **fields):
    return Span(part, source, seconds, **fields)


def make_attempt(spans=(), outcome=Outcome.SUCCEEDED, worker="w0", **fields):
    return Attempt(
        **{
            "kind": AttemptKind.LOCAL,
            "worker": WorkerRef(worker, "1"),
            "started_s": 0.0,
            "ended_s": 1.0,
            "outcome": outcome,
            "engine_request_id": ENGINE_ID,
            "spans": tuple(spans),
            **fields,
        }
    )


def make_timeline(content_times_s=(0.5, 0.6, 0.7), *, spans=(), engine_spans=(), **fields):
    defaults = {
        "request_id": "r1",
        "started_unix_s": EPOCH_S,
        "model": "m",
        "outcome": Outcome.SUCCEEDED,
        "ended_s": content_times_s[-1] if content_times_s else 1.0,
        "attempts": (make_attempt(engine_spans),),
        "spans": tuple(spans),
        "content_times_s": tuple(content_times_s),
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": len(content_times_s),
    }
    return Timeline(**{**defaults, **fields})


def make_step(seq, ended_s, *, prompt=0, decode=1, running=1, waiting=0, finished=(), **fields):
    return EngineStep(
        seq=seq,
        ended_unix_s=EPOCH_S + ended_s,
        running=running,
        waiting=waiting,
        kv_usage=0.1,
        prompt_tokens=prompt,
        decode_tokens=decode,
        finished=tuple(finished),
        **fields,
    )


def make_finished(request_id=ENGINE_ID, **fields):
    return FinishedRequest(
        **{
            "request_id": request_id,
            "reason": "stop",
            "prompt_tokens": 100,
            "cached_tokens": 0,
            "output_tokens": 3,
            "queue_s": 0.0,
            "prefill_s": 0.3,
            "decode_s": 0.2,
            "e2e_s": 0.6,
            **fields,
        }
    )

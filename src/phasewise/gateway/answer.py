"""What was seen of one worker's answer: when its content came, what the client got, what it says of itself.

Bytes are forwarded elsewhere; what the notes add up to is worked out by timeline_builder.py.
"""

from __future__ import annotations

from array import array
from operator import sub

import orjson

from phasewise.adapters.engine_report import EngineReport, read_report
from phasewise.adapters.sse import finish_reason
from phasewise.model.hand_over import NO_ACCOUNT, EngineAccount
from phasewise.model.timeline import Part

NO_REPORT = EngineReport()
LATEST_GAPS = 16
"""A stream's pace is that of so many of its last gaps: those of its first had other streams beside them."""


class Answer:
    """Notes on one attempt's answer. Times are those of the monotonic clock.

    `text_escaped` is the text of a stream so far, as it stands between the quotes of its JSON: what could go
    on elsewhere. It is not the whole answer once `saw_other_than_text` holds: reasoning, tool calls,
    logprobs, a refusal or a second choice came too. `created` is the engine's, in whole seconds.
    """

    __slots__ = (
        "content_times_s",
        "created",
        "engine_request_id",
        "finish_reason",
        "finished_s",
        "report",
        "saw_other_than_text",
        "text_escaped",
    )

    def __init__(self) -> None:
        # Thousands of streams are open at once: 8 bytes for a time, not the 32 of a list of floats.
        self.content_times_s = array("d")
        self.text_escaped = bytearray()
        self.saw_other_than_text = False
        self.engine_request_id: str | None = None
        self.created: int | None = None
        self.finish_reason: str | None = None
        self.finished_s: float | None = None
        self.report = NO_REPORT


def read_plain_answer(body: bytes) -> Answer:
    """Notes on a reply that was not streamed.

    It has no content times: nobody saw when its first token came, only when the whole was there.
    """
    answer = Answer()
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return answer
    if isinstance(fields, dict):
        answer.engine_request_id = _text(fields.get("id"))
        answer.finish_reason = finish_reason(fields)
        usage, metrics = fields.get("usage"), fields.get("metrics")
        answer.report = read_report(
            usage if isinstance(usage, dict) else None, metrics if isinstance(metrics, dict) else None
        )
    return answer


def account_of(answer: Answer | None) -> EngineAccount:
    """What the answer tells of the engine that gave it."""
    if answer is None:
        return NO_ACCOUNT
    report = answer.report
    seconds = {span.part: span.duration_s for span in report.spans}
    return EngineAccount(
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        output_tokens=report.output_tokens,
        queue_s=seconds.get(Part.ENGINE_QUEUE),
        prefill_s=seconds.get(Part.PREFILL),
        gap_s=_gap_s(answer.content_times_s, report.output_tokens),
    )


def _gap_s(times_s: array[float], tokens: int | None) -> float | None:
    """The median time between two tokens, as far as chunks tell; several of them may share one."""
    if len(times_s) < 2:
        return None
    latest_s = times_s[-LATEST_GAPS - 1 :]
    # Every answer passes here: statistics.median takes five times as long.
    gaps_s = sorted(map(sub, latest_s[1:], latest_s))
    chunk_s: float = gaps_s[(len(gaps_s) - 1) // 2]
    return chunk_s if tokens is None else chunk_s * min(1.0, len(times_s) / max(1, tokens))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

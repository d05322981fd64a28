"""What was seen of one worker's answer: when its content came, what the client got, what it says of itself.

Bytes are forwarded elsewhere; what the notes add up to is worked out by timeline_builder.py.
"""

from __future__ import annotations

from array import array

import orjson

from phasewise.adapters.engine_report import EngineReport, read_report
from phasewise.adapters.sse import finish_reason

NO_REPORT = EngineReport()


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


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

"""What was seen of one worker's answer: when its content came, what the client got, what it says of itself.

Bytes are forwarded elsewhere; what the notes add up to is worked out by timeline_builder.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from operator import sub
from typing import Any

import orjson

from phasewise.adapters.engine_report import EngineReport, read_report
from phasewise.adapters.sse import finish_reason, stop_reason
from phasewise.model.hand_over import NO_ACCOUNT, EngineAccount
from phasewise.model.timeline import Part

NO_REPORT = EngineReport()
_MORE_THAN_TEXT = (
    "reasoning",
    "reasoning_content",
    "refusal",
    "tool_calls",
    "function_call",
    "audio",
    "annotations",
)
LATEST_GAPS = 16
"""A stream's pace is that of so many of its last gaps: those of its first had other streams beside them."""


class Answer:
    """Notes on one attempt's answer. Times are those of the monotonic clock.

    `text_escaped` is the text so far, as it stands between the quotes of its JSON: what could go on
    elsewhere. It is not the whole answer once `saw_other_than_text` holds: reasoning, tool calls, logprobs, a
    refusal, sound, annotations or a second choice came too. `complete` holds once all of it has come and its
    end was announced. `created` is the engine's, in whole seconds.
    """

    __slots__ = (
        "complete",
        "content_times_s",
        "created",
        "engine_request_id",
        "finish_reason",
        "finished_s",
        "report",
        "saw_other_than_text",
        "stop_reason",
        "text_escaped",
    )

    def __init__(self) -> None:
        # Thousands of streams are open at once: 8 bytes for a time, not the 32 of a list of floats.
        self.content_times_s = array("d")
        self.text_escaped = bytearray()
        self.saw_other_than_text = False
        self.complete = False
        self.engine_request_id: str | None = None
        self.created: int | None = None
        self.finish_reason: str | None = None
        self.finished_s: float | None = None
        self.stop_reason: int | str | None = None
        self.report = NO_REPORT

    def text(self) -> str | None:
        """The text so far; None if it is no text, or not all that came."""
        if self.saw_other_than_text:
            return None
        try:
            text: str = orjson.loads(b'"%b"' % bytes(self.text_escaped))
        except orjson.JSONDecodeError:
            return None
        return text


def read_plain_answer(body: bytes, *, with_text: bool = False) -> Answer:
    """Notes on a reply that was not streamed, `with_text` where somebody may keep it.

    It has no content times: nobody saw when its first token came, only when the whole was there.
    """
    answer = Answer()
    # Until it is seen to be text: others are not to be given an answer that nobody could read.
    answer.saw_other_than_text = with_text
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return answer
    if isinstance(fields, dict):
        answer.engine_request_id = _text(fields.get("id"))
        answer.finish_reason, answer.stop_reason = finish_reason(fields), stop_reason(fields)
        usage, metrics = fields.get("usage"), fields.get("metrics")
        answer.report = read_report(
            usage if isinstance(usage, dict) else None, metrics if isinstance(metrics, dict) else None
        )
        if with_text:
            _note_text(answer, fields.get("choices"))
    return answer


def _note_text(answer: Answer, choices: object) -> None:
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict):
        return
    message = choice.get("message")
    said: Mapping[str, Any] = message if isinstance(message, dict) else choice
    text = said.get("content" if isinstance(message, dict) else "text")
    if isinstance(text, str):
        answer.text_escaped += orjson.dumps(text)[1:-1]
    more = (choice.get("logprobs"), choice.get("token_ids"), *(said.get(name) for name in _MORE_THAN_TEXT))
    answer.saw_other_than_text = not isinstance(text, str) or any(more)


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

"""Makes a completion that resumes a broken answer look like the rest of that answer.

Ids, shape and counts become those of the stream that the client reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from phasewise.clients.sse import DONE, EventSplitter, event_data
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.request import Endpoint
from phasewise.gateway.upstream.response import Answer, StreamRelay


@dataclass(frozen=True, slots=True)
class ClientsView:
    """What the chunks of the client's stream have in common, and its tokens so far."""

    endpoint: Endpoint
    client_id: str
    created: int | None
    prompt_tokens: int
    answer_tokens: int

    def chunk(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        """A completion's chunk as one of the client's."""
        seen = {**chunk, "id": self.client_id}
        if self.created is not None:
            seen["created"] = self.created
        if isinstance(chunk.get("choices"), list):
            seen["choices"] = [self._choice(choice) for choice in chunk["choices"]]
        if isinstance(chunk.get("usage"), dict):
            seen["usage"] = self._usage(chunk["usage"])
        if self.endpoint is Endpoint.CHAT:
            seen["object"] = "chat.completion.chunk"
        return seen

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        if self.endpoint is Endpoint.COMPLETIONS:
            return dict(choice)
        seen = {
            "index": 0,
            "delta": {"content": choice.get("text", "")},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason"),
        }
        if choice.get("finish_reason") is not None:
            seen["stop_reason"] = choice.get("stop_reason")
        return seen

    def _usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        # Tokens before the break are prompt to the new worker and answer to the client.
        written = self.answer_tokens + int(usage.get("completion_tokens") or 0)
        seen = {
            **usage,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + written,
            "completion_tokens": written,
        }
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(cached := details.get("cached_tokens"), int):
            seen["prompt_tokens_details"] = {**details, "cached_tokens": min(cached, self.prompt_tokens)}
        return seen


class ContinuedStream(StreamRelay):
    """Relays the rest of an answer. The client already has the text that is written `again`."""

    __slots__ = ("_again", "_raw", "_view")

    def __init__(self, answer: Answer, view: ClientsView, *, again: str = "", hide_usage: bool) -> None:
        super().__init__(answer, hide_usage=hide_usage)
        self._raw = EventSplitter()
        self._view = view
        self._again = again

    def feed(self, data: bytes, at_s: float) -> bytes:
        """What may be sent to the client now that `data` has come."""
        seen = b"".join(map(self._as_the_clients, self._raw.feed(data)))
        return super().feed(seen, at_s) if seen else b""

    def takes_usual(self, data: bytes, start: int, end: int, at_s: float) -> bool:
        """Nothing passes as it came."""
        del data, start, end, at_s
        return False

    def _as_the_clients(self, event: bytes) -> bytes:
        try:
            chunk = orjson.loads(event_data(event))
        except orjson.JSONDecodeError:
            return event + b"\n\n"
        if not isinstance(chunk, dict) or "choices" not in chunk:
            return event + b"\n\n"
        try:
            return self._chunk_as_the_clients(chunk)
        except (AttributeError, TypeError, ValueError):
            raise UpstreamError(FailureKind.PROTOCOL, "the worker's chunks are not a completion's") from None

    def _chunk_as_the_clients(self, chunk: dict[str, Any]) -> bytes:
        if self.answer.engine_request_id is None:
            self.answer.engine_request_id = chunk.get("id")
        if self._again:
            self._take_out_again(chunk["choices"])
        return _event(self._view.chunk(chunk))

    def _take_out_again(self, choices: list[dict[str, Any]]) -> None:
        for choice in choices:
            text = choice.get("text") or ""
            size = min(len(text), len(self._again))
            if text[:size] != self._again[:size] or (size < len(self._again) and choice.get("finish_reason")):
                raise UpstreamError(FailureKind.NOT_CONTINUED, "the worker resumed with another word")
            choice["text"], self._again = text[size:], self._again[size:]


def completion_ending(model: str, finish_reason: str | None) -> bytes:
    """A completion without text, for an answer that only lacks its end.

    Without a finish reason, because the client already has it.
    """
    frame = {"object": "text_completion", "model": model}
    end = {"index": 0, "text": "", "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    nothing = {"prompt_tokens": 0, "total_tokens": 0, "completion_tokens": 0}
    usage = _event({**frame, "choices": [], "usage": nothing})
    return (_event({**frame, "choices": [end]}) if finish_reason else b"") + usage + DONE + b"\n\n"


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"

"""The text of a prompt as far as marks look at it, without the JSON around it.

Escapes and field names would make unlike prompts look alike. Marking is model/prefix_marks.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phasewise.model.prefix_marks import TEXT_LIMIT_BYTES
from phasewise.model.request import Endpoint


def prompt_text(endpoint: Endpoint, fields: dict[str, Any]) -> bytes:
    """The beginning of what a request says, turn after turn; nothing where it sends token ids."""
    if endpoint is Endpoint.CHAT:
        texts = _chat_texts(fields.get("messages"))
    else:
        texts = _prompts(fields.get("prompt" if endpoint is Endpoint.COMPLETIONS else "input"))
    taken: list[str] = []
    room = TEXT_LIMIT_BYTES
    for text in texts:
        taken.append(text[:room])
        room -= len(text)
        if room <= 0:
            break
    return "\n".join(taken).encode(errors="replace")


def _chat_texts(messages: object) -> Iterator[str]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            yield from (
                part["text"]
                for part in content
                if isinstance(part, dict) and isinstance(part.get("text"), str)
            )


def _prompts(prompt: object) -> Iterator[str]:
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        yield from (text for text in prompt if isinstance(text, str))

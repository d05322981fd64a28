"""Messages to prompt text, in the ChatML form that the demo model uses too.

Tokens are made of it elsewhere; tools and images are not for a fake engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def render_chat(messages: Sequence[Mapping[str, Any]], *, open_answer: bool, continue_final: bool) -> str:
    """The prompt; with `continue_final` the last message stays open, so that what follows continues it.

    Continuing an answer from its text gives the same tokens as having gone on writing it.
    """
    turns = [f"<|im_start|>{message.get('role', 'user')}\n{_text_of(message)}" for message in messages]
    closed = "<|im_end|>\n".join(turns)
    if continue_final:
        return closed
    return closed + "<|im_end|>\n" + ("<|im_start|>assistant\n" if open_answer else "")


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)

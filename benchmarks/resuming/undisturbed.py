"""A greedy answer of a real engine to which nothing happened, token by token, to hold others against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phasewise.clients.http_client import HttpClient

from .asking import chunk_of, stream, text_of
from .near_tie import gap_nats, parting


@dataclass
class Undisturbed:
    """The prompt's tokens, and text and id of each token of the answer."""

    model: str
    prompt_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    async def gap_where_it_parts(self, client: HttpClient, got: str) -> float | None:
        """How close the engine's choice was where another text parts from this one; None if it does not."""
        at = parting(self.texts, got)
        return None if at is None else await gap_nats(client, self.model, self.prompt_ids + self.ids[:at])


async def undisturbed(client: HttpClient, path: str, body: dict[str, Any]) -> Undisturbed:
    """The engine's own answer to a request; its prompt must be one, and it must be greedy."""
    answer = Undisturbed(body["model"])
    async for event in stream(client, path, {**body, "stream": True, "return_token_ids": True}):
        if (chunk := chunk_of(event)) is None or not chunk["choices"]:
            continue
        choice = chunk["choices"][0]
        if prompt_ids := chunk.get("prompt_token_ids") or choice.get("prompt_token_ids"):
            answer.prompt_ids = prompt_ids
        if ids := choice.get("token_ids"):
            # A token may have no text of its own, such as the first half of an emoji.
            answer.ids += ids
            answer.texts += [text_of(chunk), *[""] * (len(ids) - 1)]
    return answer

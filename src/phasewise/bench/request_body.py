"""What is posted for one planned request, and whether a server lets us fix how long its answer is."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from phasewise.adapters.http_client import HttpClient
from phasewise.bench.target import Target
from phasewise.errors import UpstreamError
from phasewise.model.request import Endpoint
from phasewise.workload.prompts import Message

REFUSALS = frozenset({400, 422})
REPLY_LIMIT_BYTES = 1024 * 1024


def request_body(model: str, messages: Sequence[Message], max_tokens: int, *, fixed: bool) -> bytes:
    """A streamed chat request; `fixed` asks for exactly `max_tokens`, as vLLM can be asked to."""
    body: dict[str, object] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if fixed:
        body |= {"ignore_eos": True, "min_tokens": max_tokens}
    return orjson.dumps(body)


async def allows_fixed_lengths(client: HttpClient, target: Target) -> bool:
    """Ask for one token with the fields that fix a length: not every server takes them.

    Found out before the run, once: a refusal during it has other reasons. A server that refuses the same
    request without the fields as well is not judged by it.
    """
    return not (
        await _status(client, target, fixed=True) in REFUSALS
        and await _status(client, target, fixed=False) == 200
    )


async def _status(client: HttpClient, target: Target, *, fixed: bool) -> int:
    body = request_body(target.model, (Message("user", "Hello"),), 1, fixed=fixed)
    try:
        reply = await client.send("POST", Endpoint.CHAT, headers=target.headers, body=body)
        async with reply:
            await reply.read_all(REPLY_LIMIT_BYTES)
            return reply.status
    except UpstreamError:
        return 0

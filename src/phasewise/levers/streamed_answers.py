"""Greedy answers as text, from servers that stream but hand out no token ids.

What equal or different text means is outputs.py's.
"""

from __future__ import annotations

from phasewise.adapters.http_client import HttpClient
from phasewise.adapters.sse import EventSplitter, content_text
from phasewise.bench.request_body import request_body
from phasewise.bench.target import Target, find_target
from phasewise.errors import MeasurementError
from phasewise.levers.probes import Probe
from phasewise.model.request import Endpoint
from phasewise.workload.prompts import Message


async def streamed_answers(url: str, probe: Probe, tokens: int) -> tuple[str, ...]:
    """Ask every prompt of the probe."""
    client = HttpClient(url)
    try:
        target = await find_target(client)
        return await probe.ask(lambda prompt: _answer(client, target, prompt, tokens))
    finally:
        client.close()


async def _answer(client: HttpClient, target: Target, prompt: str, tokens: int) -> str:
    body = request_body(target.model, (Message("user", prompt),), tokens, fixed=False)
    reply = await client.fetch("POST", Endpoint.CHAT, headers=target.headers, body=body)
    if reply.status != 200:
        raise MeasurementError(
            f"the engine refuses to stream an answer (HTTP {reply.status})", hint="its own log says why"
        )
    return "".join(map(content_text, EventSplitter().feed(reply.body)))

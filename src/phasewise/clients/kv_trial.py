"""Sends engines a prompt of our own, whole or disaggregated, and reads by how much their counters grew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from phasewise.clients.engine_metrics import fetch_page
from phasewise.clients.http_client import HttpClient
from phasewise.core.engine_metrics import KvCounters
from phasewise.core.kv_transfer import KvProof, kv_proof
from phasewise.core.timeline import NO_ACCOUNT, EngineAccount
from phasewise.engines.known import read_account

COUNTED_WITHIN_S = 1.0
"""The engine counts a transfer with its next step, a moment after the answer."""
_LOOKS = 5
_SETTLED = {KvProof.MOVED, KvProof.HIDDEN}
_WORDS = ("red", "tree", "one", "house", "sun", "four", "road", "blue", "hand", "sea", "ten", "cold")
_GREETING = b"\xff"
_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """One engine's answer to our prompt. `params` locate the KV it keeps."""

    status: int
    text: str = ""
    account: EngineAccount = NO_ACCOUNT
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the engine answered the request."""
        return self.status == 200


def trial_prompt(tokens: int, chance: Random) -> str:
    """About this many tokens that no engine has seen before."""
    nonce = " ".join(str(chance.randrange(10)) for _ in range(16))
    return f"{nonce} " + " ".join(chance.choice(_WORDS) for _ in range(max(1, tokens - 32)))


async def ask(
    client: HttpClient, model: str, prompt: str, output_tokens: int, params: Mapping[str, Any] | None = None
) -> TrialAnswer:
    """Have the engine answer the prompt; UpstreamError if the exchange breaks."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if params is not None:
        body["kv_transfer_params"] = params
    reply = await client.fetch("POST", _PATH, body=orjson.dumps(body))
    return _answer(reply.status, reply.body)


async def growth_since(client: HttpClient, before: KvCounters, prompt_tokens: int) -> KvCounters:
    """By how much the counters grew, as soon as they include a KV transfer this large, or after a moment."""
    for _ in range(_LOOKS):
        grown = _growth(before, (await fetch_page(client)).kv)
        proof = kv_proof(grown.moved_tokens, grown.computed_tokens, prompt_tokens)
        if proof in _SETTLED and grown.moved_bytes:
            break
        await asyncio.sleep(COUNTED_WITHIN_S / _LOOKS)
    return grown


async def speaks_side_channel(host: str, port: int, within_s: float) -> bool:
    """Whether the server at this address greets as NIXL's side channel does.

    OSError if nothing listens there, TimeoutError if nothing comes back, as with a blocked port.
    """
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            return await reader.read(1) == _GREETING
        finally:
            writer.transport.abort()


def _growth(before: KvCounters, after: KvCounters) -> KvCounters:
    grown: dict[str, Any] = {}
    for name in ("moved_tokens", "computed_tokens", "moved_bytes", "moving_s"):
        # A labelled series appears when it is first counted.
        now, then = getattr(after, name), getattr(before, name) or 0.0
        grown[name] = None if now is None else now - then
    return KvCounters(**grown)


def _answer(status: int, body: bytes) -> TrialAnswer:
    try:
        said = orjson.loads(body)
        if status != 200:
            return TrialAnswer(status)
        text = str(said["choices"][0]["text"])
        return TrialAnswer(
            status, text, read_account(said) or NO_ACCOUNT, said.get("kv_transfer_params") or {}
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return TrialAnswer(status if status != 200 else 502)

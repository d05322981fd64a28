"""What is asked of an address before load is put on it: its model, its context, its tokenizer.

Sending the load itself is left to the generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import orjson

from phasewise.adapters.http_client import Headers, HttpClient, Reply
from phasewise.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError
from phasewise.workload.plan import Plan, PlannedRequest, refitted
from phasewise.workload.prompts import Message

FIT_ROUNDS = 12
"""One round mends a prompt whose words are tokens; where some are split, other words are tried at its end."""
FIT_LIMIT = 2_000
"""Above so many requests asking the tokenizer for each would take longer than most runs."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, the model asked for there, and how we identify ourselves."""

    url: str
    model: str
    context_tokens: int | None = None
    headers: Headers = field(default=(), repr=False)


async def find_target(client: HttpClient, model: str | None = None, api_key: str | None = None) -> Target:
    """Ask the address which models it serves; the first one is taken unless one is named."""
    headers = request_headers(api_key)
    reply = await _ask(client, headers)
    if reply.status in {401, 403}:
        raise ConfigError(
            f"{client.base_url} wants an API key", hint="give --api-key or set PHASEWISE_API_KEY"
        )
    served = _served_models(reply)
    if model is None and not served:
        raise ConfigError(f"{client.base_url} does not say which models it serves", hint="give --model NAME")
    name = model or next(iter(served))
    if served and name not in served:
        raise ConfigError(
            f"{client.base_url} does not serve {name!r}", hint=f"it serves {', '.join(sorted(served))}"
        )
    return Target(client.base_url, name, served.get(name), headers)


def request_headers(api_key: str | None) -> Headers:
    """The headers every request carries."""
    headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream, application/json")]
    if api_key:
        headers.append((b"authorization", b"Bearer " + api_key.encode()))
    return tuple(headers)


async def fit_prompts(client: HttpClient, target: Target, plan: Plan, rng: Random) -> Plan:
    """Make every prompt exactly as long as planned, if the address has a tokenizer to ask."""
    if len(plan.requests) > FIT_LIMIT:
        return plan
    fitted: list[PlannedRequest] = []
    for planned in plan.requests:
        exact = await _fit(client, target, planned, rng)
        if exact is None:
            return plan
        fitted.append(exact)
    return replace(plan, threads=tuple((planned,) for planned in fitted), exact_prompts=True)


async def count_prompt_tokens(client: HttpClient, target: Target, messages: Sequence[Message]) -> int | None:
    """How many tokens a conversation comes to with its template, None where nobody says."""
    body = orjson.dumps({"model": target.model, "messages": messages})
    try:
        reply = await client.fetch("POST", "/tokenize", headers=target.headers, body=body)
    except UpstreamError:
        return None
    count = _json(reply).get("count") if reply.status == 200 else None
    return count if isinstance(count, int) else None


async def _fit(
    client: HttpClient, target: Target, planned: PlannedRequest, rng: Random
) -> PlannedRequest | None:
    for _ in range(FIT_ROUNDS):
        counted = await count_prompt_tokens(client, target, planned.messages)
        if counted is None:
            return None
        if counted == planned.prompt_tokens:
            return planned
        planned = refitted(planned, counted, rng)
    # The template alone may be longer than what was asked for: then what is counted is what is planned.
    counted = await count_prompt_tokens(client, target, planned.messages)
    return None if counted is None else replace(planned, prompt_tokens=counted)


async def _ask(client: HttpClient, headers: Headers) -> Reply:
    try:
        return await client.fetch("GET", "/v1/models", headers=headers)
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            f"nothing answers at {client.base_url}",
            hint="check the address and that the engine is ready: its /health answers 200",
        ) from error


def _served_models(reply: Reply) -> dict[str, int | None]:
    models = _json(reply).get("data") if reply.status == 200 else None
    if not isinstance(models, list):
        return {}
    return {
        entry["id"]: _context_tokens(entry) for entry in models if isinstance(entry, dict) and "id" in entry
    }


def _context_tokens(entry: dict[str, Any]) -> int | None:
    tokens = entry.get("max_model_len")
    return tokens if isinstance(tokens, int) else None


def _json(reply: Reply) -> dict[str, Any]:
    try:
        body = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}

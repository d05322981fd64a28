"""Sends every field of an engine's own /openapi.json to the engine itself and through a gateway.

Neither has a key. Each field is sent with a sample value and as null. Equal are the same status and, of JSON,
the same keys at the same places. What differs has to be one of KINDS.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Timeouts

PATIENCE = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)
TURN = [{"role": "user", "content": "Say hi."}]
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "max_tokens": 2, "temperature": 0},
    "/v1/completions": {"prompt": "Once", "max_tokens": 2, "temperature": 0},
    "/v1/responses": {"input": "Say hi.", "max_output_tokens": 2, "temperature": 0},
    "/v1/messages": {"messages": TURN, "max_tokens": 2, "temperature": 0},
    "/v1/messages/count_tokens": {"messages": TURN},
    "/v1/embeddings": {"input": "Once"},
}
QUICK = ("anything", "cache_salt", "chat_template", "model", "n", "priority", "request_id", "vllm_xargs")
BEYOND: dict[str, Any] = {
    "client_metadata": {"a": "b"},
    "thinking": {"type": "disabled"},
    "enable_thinking": False,
    "provider": {"order": ["a"]},
    "usage": {"include": True},
    "num_ctx": 8192,
    "output_format": "text",
    "verbosity": "low",
    "store": False,
    "anything": {"deep": [1]},
}
"""Fields that clients send and no engine knows."""
KINDS = {
    "kv_transfer_params": "it says whose memory an engine reads, and belongs to the gateway",
    "ec_transfer_params": "it says whose memory an engine reads, and belongs to the gateway",
    "request_id": "it is the gateway's",
}
FAILS = "the engine fails at it, which the gateway reports in its own words"
ANTHROPICS = "an error at Anthropic's addresses has Anthropic's shape, which its clients read"
"""Why a field may differ: ten rows at most."""
FIRST_ERROR, FIRST_FAILURE, UNAVAILABLE = 400, 500, 503
TRIES = 3
"""Where a field makes the engine draw its answer by chance, two answers may differ in shape."""
RECOVERS_WITHIN_S = 10.0
_SAMPLES: dict[str, Any] = {
    "messages": TURN,
    "temperature": 0,
    "prompt": "Once",
    "input": "Once",
    "stop": ["zzz"],
    "n": 2,
    "priority": 0,
    "response_format": {"type": "text"},
    "truncate_prompt_tokens": 100,
    "tools": [],
    "kv_transfer_params": {"do_remote_decode": True},
    "allowed_token_ids": [5, 6],
    "cache_salt": "salt",
    "request_id": "mine",
    "vllm_xargs": {"a": 1},
}
_BY_TYPE: dict[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 0.5,
    "string": "a",
    "array": [],
    "object": {},
}


async def compare_fields(engine: str, gateway: str, model: str, *, quick: bool) -> dict[str, Any]:
    """How many were tried, how many are equal, and which differ; `unexplained` is none of KINDS."""
    direct, through = HttpClient(engine, PATIENCE), HttpClient(gateway, PATIENCE)
    equal = tried = 0
    differing: dict[str, list[str]] = {}
    try:
        for path, field, body in await _probes(direct, model, quick=quick):
            for _ in range(TRIES):
                here, there = [await _send(client, path, body) for client in (direct, through)]
                if there[0] == UNAVAILABLE:
                    # The engine failed at an earlier field: it is asked again in a moment.
                    await asyncio.sleep(RECOVERS_WITHIN_S)
                    there = await _send(through, path, body)
                if here[:2] == there[:2] or here[0] != there[0] or here[0] >= FIRST_ERROR:
                    break
            tried += 1
            if here[:2] == there[:2]:
                equal += 1
                continue
            kind = _kind(path, field, here[0], there[0])
            differing.setdefault(kind, []).append(
                f"{path} {field}={orjson.dumps(body.get(field)).decode()[:60]}: "
                f"{here[0]} {here[2][:160]} | {there[0]} {there[2][:160]}"
            )
    finally:
        direct.close()
        through.close()
    return {"engine_fields": tried, "fields_equal": equal, "fields_differing": differing}


def _kind(path: str, field: str, here: int, there: int) -> str:
    """Why an answer may differ."""
    if here >= FIRST_FAILURE:
        return FAILS
    if path.startswith("/v1/messages") and here == there >= FIRST_ERROR:
        return ANTHROPICS
    return KINDS.get(field, "unexplained")


async def _probes(direct: HttpClient, model: str, *, quick: bool) -> list[tuple[str, str, dict[str, Any]]]:
    """Each request: its path, the field that is tried, its body. Agents' requests try no single field."""
    known = {} if quick else await _fields_of(direct)
    probes = [
        (path, field, {**({"model": model} | least), field: value})
        for path, least in LEAST.items()
        if quick or path in known
        for field, sample in sorted(
            ({name: _SAMPLES.get(name, 1) for name in QUICK} | known.get(path, BEYOND)).items()
        )
        for value in ((model if field == "model" else sample), None)
    ]
    probes += [(path, "(all)", {"model": model, **body}) for path, body in AGENTS]
    return [
        *probes,
        *((path, "model", dict(least)) for path, least in LEAST.items() if quick or path in known),
    ]


async def _fields_of(direct: HttpClient) -> dict[str, dict[str, Any]]:
    """Of each path that the engine serves, its fields with a sample of each."""
    document = orjson.loads((await direct.fetch("GET", "/openapi.json")).body)
    return {
        path: {name: _sample(name, schema, document) for name, schema in _properties(path, document).items()}
        | BEYOND
        for path in LEAST
        if path in document["paths"]
    }


def _properties(path: str, document: dict[str, Any]) -> dict[str, Any]:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    properties: dict[str, Any] = {}
    for one in (schema, *schema.get("anyOf", []), *schema.get("oneOf", [])):
        properties |= _resolved(one, document).get("properties", {})
    return properties


def _sample(name: str, schema: dict[str, Any], document: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    if name in _SAMPLES:
        return _SAMPLES[name]
    for one in (schema, *schema.get("anyOf", []), *schema.get("oneOf", [])):
        found = _resolved(one, document)
        if "const" in found or found.get("enum"):
            return found["const"] if "const" in found else found["enum"][0]
        if (kind := found.get("type", "null")) != "null":
            return {"type": "text"} if found.get("required") else _BY_TYPE[kind]
    return schema.get("default", 1)


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


async def _send(client: HttpClient, path: str, body: dict[str, Any]) -> tuple[int, Any, str]:
    headers = [(b"content-type", b"application/json")]
    reply = await client.fetch("POST", path, headers=headers, body=orjson.dumps(body))
    text = reply.body.decode(errors="replace")
    try:
        return reply.status, _shape(orjson.loads(reply.body)), text
    except orjson.JSONDecodeError:
        return reply.status, text.partition(":")[0], text


def _shape(value: object) -> Any:  # noqa: ANN401 - as nested as the value
    if isinstance(value, dict):
        return {name: _shape(held) for name, held in value.items()}
    # Answers differ in length.
    return [_shape(value[0])] if isinstance(value, list) and value else type(value).__name__


_SHELL = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}, "workdir": {"type": "string"}},
    "required": ["command"],
}
AGENTS: list[tuple[str, dict[str, Any]]] = [
    # Codex
    ("/v1/responses", {
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]},
        ],
        "tools": [{"type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
                   "parameters": _SHELL}],
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": None, "store": False,
        "stream": True, "include": [], "prompt_cache_key": "0190", "client_metadata": {"installation": "a"},
        "max_output_tokens": 8,
    }),
    # Claude Code
    ("/v1/messages", {
        "max_tokens": 8, "stream": True, "temperature": 1,
        "system": [
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "List files.", "cache_control": {"type": "ephemeral"}}]}],
        "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": _SHELL,
                   "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "user_a"}, "thinking": {"type": "disabled"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }),
    # An agent that asks for chats, such as one behind OpenRouter
    ("/v1/chat/completions", {
        "messages": [{"role": "system", "content": "You are a coding agent."}, *TURN], "stream": True,
        "tools": [{"type": "function", "function": {"name": "shell", "parameters": _SHELL}}],
        "tool_choice": "auto", "parallel_tool_calls": False, "max_completion_tokens": 8, "num_ctx": 8192,
        "stream_options": {"include_usage": True}, "usage": {"include": True},
        "provider": {"order": ["a"]}, "reasoning": {"effort": "low"}, "store": False, "metadata": {"a": "b"},
        "prompt_cache_key": "0190", "safety_identifier": "a", "user": None, "stop": None, "seed": None,
    }),
]  # fmt: skip
"""What coding agents send with their tools."""

"""Sends every path of an engine's own /openapi.json to the engine itself and through a gateway.

Neither has a key. Equal are the same status and, of JSON, the same keys at the same places.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from phasewise.clients.http_client import HttpClient, Reply, Timeouts
from phasewise.core.errors import UpstreamError

PATIENCE = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)
OWN = ("/health", "/metrics", "/openapi.json")
"""The gateway's own, about all its engines."""
FORM = "multipart/form-data"
FILE = b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
TURN = [{"role": "user", "content": "Say hi."}]
SAMPLE: dict[str, Any] = {
    "messages": TURN, "prompt": "Once", "input": "Say hi.", "max_tokens": 4, "max_completion_tokens": 4,
    "max_output_tokens": 4, "tokens": [1, 2], "text_1": "a", "text_2": "b", "query": "a", "documents": ["b"],
    "texts": ["a"], "items": ["a"], "data_1": "a", "data_2": "b", "queries": "a",
}  # fmt: skip
"""What a body holds of its path's own fields; the engine says what else it wants."""


async def compare_paths(engine: str, gateway: str, model: str) -> dict[str, Any]:
    """How many paths there are, how many are equal, which are closed and which differ."""
    direct, through = HttpClient(engine, PATIENCE), HttpClient(gateway, PATIENCE)
    equal, closed, differing = 0, [], {}
    try:
        document = orjson.loads((await direct.fetch("GET", "/openapi.json")).body)
        asked = [
            (method.upper(), re.sub(r"\{\w+\}", "1", path), operation)
            for path, item in document["paths"].items()
            if path not in OWN
            for method, operation in item.items()
        ]
        for method, path, operation in asked:
            # What it closes is not tried at the engine: it may end it.
            there = await _send(through, method, path, operation, document, model)
            if there[0] == 404 and "gateway.engine_paths" in there[2]:
                closed.append(f"{method} {path}")
                continue
            here = await _send(direct, method, path, operation, document, model)
            equal += here[:2] == there[:2]
            if here[:2] != there[:2]:
                differing[f"{method} {path}"] = {
                    "engine": f"{here[0]} {here[2][:120]}",
                    "gateway": f"{there[0]} {there[2][:120]}",
                }
    finally:
        direct.close()
        through.close()
    return {"engine_paths": len(asked), "paths_equal": equal, "closed": closed, "differing": differing}


async def _send(
    client: HttpClient,
    method: str,
    path: str,
    operation: dict[str, Any],
    document: dict[str, Any],
    model: str,
) -> tuple[int, Any, str]:
    """The status, the shape and the text of a reply."""
    content = operation.get("requestBody", {}).get("content", {})
    kind = "application/json"
    body = b""
    if any(it.startswith(("multipart/", "application/x-www")) for it in content):
        kind = f"{FORM}; boundary=b"
        body = FILE % (b"model", model.encode()) + FILE % (b'file"; filename="a.wav', b"RIFF") + b"--b--\r\n"
    elif method == "POST":
        schema = _resolved(content.get("application/json", {}).get("schema", {}), document)
        names = {name for it in (schema, *schema.get("anyOf", [])) for name in _properties(it, document)}
        body = orjson.dumps({"model": model, **{name: SAMPLE[name] for name in SAMPLE.keys() & names}})
    try:
        reply = await client.fetch(method, path, headers=[(b"content-type", kind.encode())], body=body)
    except UpstreamError as error:
        return 0, None, error.message
    return reply.status, _shape_of(reply), reply.body.decode(errors="replace")


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _properties(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    return list(_resolved(schema, document).get("properties", {}))


def _shape_of(reply: Reply) -> Any:  # noqa: ANN401 - as nested as the reply
    try:
        return _shape(orjson.loads(reply.body))
    except orjson.JSONDecodeError:
        return "text" if reply.body else "nothing"


def _shape(value: object) -> Any:  # noqa: ANN401 - as nested as the value
    if isinstance(value, dict):
        return {name: _shape(held) for name, held in value.items()}
    # Answers differ in length.
    return [_shape(value[0])] if isinstance(value, list) and value else type(value).__name__

"""An engine that says what it was told: whoever gets another tenant's answer can be caught.

Run as a script it serves on a free port and prints its address. It knows nothing else of an engine.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import orjson
import uvicorn

MODEL = "fake-model"


async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's own types
    """Answer one request."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["method"] == "GET":
        await reply(send, 200, orjson.dumps({"data": [{"id": MODEL}]}))
        return
    fields = orjson.loads(body)
    if scope["path"] == "/v1/embeddings":
        await reply(send, 200, orjson.dumps({"object": "list", "data": [], "said": fields}))
    elif fields.get("stream"):
        await stream(send, str(fields))
    else:
        choice = {
            "index": 0,
            "message": {"content": str(fields)},
            "text": str(fields),
            "finish_reason": "stop",
        }
        await reply(send, 200, orjson.dumps({"id": "echo", "choices": [choice], "usage": usage()}))


async def reply(send: Any, status: int, body: bytes) -> None:  # noqa: ANN401
    """A whole reply."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def stream(send: Any, text: str) -> None:  # noqa: ANN401
    """The text in three pieces, then the usage."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    third = len(text) // 3 + 1
    for start in range(0, len(text), third):
        piece = text[start : start + third]
        choice = {"index": 0, "delta": {"content": piece}, "text": piece, "finish_reason": None}
        await send(event({"id": "echo", "choices": [choice]}))
        await asyncio.sleep(0)
    await send(event({"id": "echo", "choices": [], "usage": usage()}))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def event(fields: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream."""
    return {
        "type": "http.response.body",
        "body": b"data: " + orjson.dumps(fields) + b"\n\n",
        "more_body": True,
    }


def usage() -> dict[str, int]:
    """Some usage."""
    return {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off")).run([listener])
    sys.exit(0)

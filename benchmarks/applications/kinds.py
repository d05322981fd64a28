"""The kinds of ordinary traffic: what a request of each is, and what surrounds it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from phasewise.gateway.api.auth import key_sha256

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "fake-model"
OUTPUT_TOKENS = 12
CODE_CHARS, PROSE_CHARS, TOOLS_BYTES = 30_000, 2_000, 100_000
IMAGE_BYTES = 5_000_000
LONG_TOKENS, CHARS_PER_TOKEN = 200_000, 4
PROSE = (
    "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. ",
    "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？",
    "كان يا ما كان، في قديم الزمان، مدينة بعيدة خلف البحر يسكنها قوم يحبون الحكايات. ",
    "एक समय की बात है, एक छोटे से गाँव में एक बुद्धिमान किसान रहता था। ",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "Größe heißt für Müller über fünf Brücken zu gehen, „ohne Öl“, und doch fröhlich zu grüßen. ",
)
WHAT_IT_IS = (
    "What to look up in place {index}: a path, a name (any case), or a list of both such as [a, b]; leave it "
    "out, or null, for everything that the caller may read."
)
UNKNOWN: dict[str, Any] = {
    "client_metadata": {"editor": "x"},
    "enable_thinking": False,
    "num_ctx": 8192,
    "output_format": "text",
    "provider": {"order": ["x"]},
    "reasoning": {"effort": "low"},
    "thinking": {"type": "disabled"},
    "usage": {"include": True},
    "verbosity": "low",
    "of_tomorrow": None,
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it goes over the wire."""

    body: bytes
    path: str = CHAT
    version: str = "1.1"
    is_chunked: bool = False
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of traffic: its requests by number, how many come at once, and what is unusual around them."""

    make: Callable[[int], Request]
    at_once: int = 500
    engines: int = 2
    idle_connections: int = 0
    keys: int = 0
    silence_s: float = 0.0
    """How long the engine says nothing before its first token."""


def chat(number: int, content: object, *, ascii_only: bool = False, **fields: Any) -> bytes:  # noqa: ANN401
    """A chat; every other one is a stream."""
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": f"Be brief. Conversation {number}."},
            {"role": "user", "content": content},
        ],
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
    }
    if number % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body | fields, ensure_ascii=ascii_only).encode()


@cache
def sources() -> str:
    """Python source."""
    root = Path(__file__).resolve().parents[2] / "src"
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))


def source(number: int) -> str:
    """A stretch of it as long as a large file."""
    begin = number * 7919 % (len(sources()) - CODE_CHARS)
    return sources()[begin : begin + CODE_CHARS]


def prose(number: int) -> str:
    """A page of one of six languages."""
    text = PROSE[number % len(PROSE)]
    return f"{number}. " + (text * (PROSE_CHARS // len(text) + 1))[:PROSE_CHARS]


def tools(number: int) -> list[dict[str, Any]]:
    """Definitions of many tools, each with a schema."""
    fields = {
        f"field_{index}": {"type": ["string", "null"], "description": WHAT_IT_IS.format(index=index)}
        for index in range(8)
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    one = {"type": "function", "function": {"name": "look_up_00", "parameters": schema}}
    count = TOOLS_BYTES // len(json.dumps(one))
    return [
        {"type": "function", "function": {"name": f"look_up_{number}_{index}", "parameters": schema}}
        for index in range(count)
    ]


@cache
def image() -> str:
    """A picture of five megabytes, as clients send it."""
    return "data:image/png;base64," + base64.b64encode(Random(1).randbytes(IMAGE_BYTES)).decode()


def pictured(number: int) -> list[dict[str, Any]]:
    """A question about it."""
    return [
        {"type": "text", "text": f"What is in picture {number}?"},
        {"type": "image_url", "image_url": {"url": image()}},
    ]


def long_prompt(number: int) -> str:
    """As many tokens as a long context has."""
    count = LONG_TOKENS * CHARS_PER_TOKEN
    return (f"{number} " + sources() * (count // len(sources()) + 1))[:count]


def completion(number: int, **fields: Any) -> Request:  # noqa: ANN401
    """A completion; every other one is a stream."""
    body = {"model": MODEL, "prompt": prose(number), "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    body |= {"stream": True} if number % 2 else {}
    return Request(json.dumps(body | fields).encode(), COMPLETIONS)


def log_likely(number: int) -> Request:
    """With log-probabilities, in the form of either endpoint."""
    if number % 4 < 2:
        return completion(number, logprobs=3)
    return Request(chat(number, "Say something.", logprobs=True, top_logprobs=3))


def of_tenant(number: int) -> Request:
    """From one of many tenants."""
    return Request(chat(number, source(number)), headers={"authorization": f"Bearer key-{number}"})


def key_settings(count: int) -> dict[str, Any]:
    """What a gateway's file says about so many keys."""
    return {
        "api_keys": [
            {"sha256": key_sha256(f"key-{number}"), "tenant": f"tenant-{number}"} for number in range(count)
        ]
    }


KINDS: dict[str, Kind] = {
    "code": Kind(lambda number: Request(chat(number, source(number)))),
    "prose": Kind(lambda number: Request(chat(number, prose(number)))),
    "prose_escaped": Kind(lambda number: Request(chat(number, prose(number), ascii_only=True))),
    "tools": Kind(lambda number: Request(chat(number, "Which tool?", tools=tools(number)))),
    "images": Kind(lambda number: Request(chat(number, pictured(number))), at_once=40),
    "long_prompts": Kind(lambda number: Request(chat(number, long_prompt(number))), at_once=100),
    "long_answers": Kind(lambda number: Request(chat(2 * number, prose(number), max_tokens=400))),
    "silence": Kind(lambda number: Request(chat(number, prose(number))), silence_s=120.0),
    "logprobs": Kind(log_likely),
    "n_of_4": Kind(lambda number: Request(chat(number, prose(number), n=4, temperature=1))),
    "unknown_fields": Kind(lambda number: Request(chat(number, prose(number), **UNKNOWN))),
    "chunked_bodies": Kind(lambda number: Request(chat(number, source(number)), is_chunked=True)),
    "http_1_0": Kind(lambda number: Request(chat(number, prose(number)), version="1.0")),
    "idle_connections": Kind(lambda number: Request(chat(number, source(number))), idle_connections=2_000),
    "engines_64": Kind(lambda number: Request(chat(number, source(number))), engines=64),
    "keys_10000": Kind(of_tenant, keys=10_000),
}

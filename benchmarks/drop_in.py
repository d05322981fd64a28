"""Is the gateway a drop-in for clients of OpenAI's and Anthropic's APIs?

    python benchmarks/drop_in.py [--quick] [--json] [--home DIR]

`phasewise up` starts one engine with the demo model and the gateway in front of it; with --quick, the engine
is a fake one. Four questions:

- fields: every field of the request types in the installed `openai` package is sent by itself, with a value
  that asks for something. It is accepted unless the gateway rejects it; what the engine says to it is its
  own matter (`openai_fields_answered` counts those with an answer);
- calls: both vendors' own clients make the calls of sdk_calls.py, each of which checks its answer. Embeddings
  are asked of a second engine, with `--runner pooling`;
- ids: `phasewise explain` is asked for a request of each endpoint by every id that its user can have, and by
  a beginning of it. An id is accepted if that very request is explained;
- fields without keys (`engine_fields`, `fields_equal`, `differing`): every field of the engine's own
  /openapi.json, those of clients that no engine knows, and the requests of three coding agents are sent to
  the engine and through a gateway, both without keys. With --quick it is a few fields;
- paths: every path of the engine's own /openapi.json is sent to it and through a gateway, both without keys;
  not with --quick, because a fake engine has no such document.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
from drop_in_fields import compare_fields
from drop_in_paths import compare_paths
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from script import command_line, print_record, say, use_home
from sdk_calls import CALLS, CHAT_TOOL, NEEDS_EMBEDDINGS, RESPONSES_TOOL, TURN, Call, Clients
from stress.processes import MODEL, fake_engines, free_ports, gateway
from stress.processes import phasewise as run_phasewise

import phasewise
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.gateway.api.auth import key_sha256

FLEET = "drop-in"
ADMIN_KEY = "admin"
QUICK_IDS = 6
"""Those of one endpoint: every one is a command that has to start."""
BEGINNING = 12
PATIENCE = Timeouts(connect_s=10.0, head_s=300.0, idle_s=300.0)
TOOL_FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
POOLING_FLAGS = ["--runner", "pooling"]
QUICK_COST = {
    "floor_s": 0.0002,
    "knee_tokens": 256,
    "beyond_knee_s_per_token": 1e-6,
    "attention_s_per_token_pair": 0.0,
    "kv_read_s_per_token": 0.0,
    "per_request_s": 1e-5,
}
QUICK_SHAPE = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "block_size": 16, "total_blocks": 4096}
TYPES: dict[str, Any] = {
    "/v1/chat/completions": chat_create_params.CompletionCreateParamsBase,
    "/v1/completions": completion_create_params.CompletionCreateParamsBase,
    "/v1/embeddings": embedding_create_params.EmbeddingCreateParams,
    "/v1/responses": response_create_params.ResponseCreateParamsBase,
}
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "max_completion_tokens": 4},
    "/v1/completions": {"prompt": "Once", "max_tokens": 4},
    "/v1/embeddings": {"input": "Once"},
    "/v1/responses": {"input": "Say hi.", "max_output_tokens": 4},
}
VALUES: dict[str, Any] = {
    "access_programs": {"cyber": True},
    "audio": {"voice": "alloy", "format": "wav"},
    "background": True,
    "best_of": 1,
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "conversation": "conv_1",
    "dimensions": 8,
    "echo": True,
    "encoding_format": "float",
    "frequency_penalty": 0.1,
    "function_call": "auto",
    "functions": [{"name": "note"}],
    "image": {"detail": "low"},
    "include": ["message.output_text.logprobs"],
    "instructions": "Be brief.",
    "logit_bias": {"5": 1},
    "max_completion_tokens": 4,
    "max_output_tokens": 4,
    "max_tokens": 4,
    "max_tool_calls": 2,
    "metadata": {"app": "x"},
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "n": 1,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.1,
    "previous_response_id": "resp_1",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "safety_identifier": "s",
    "seed": 1,
    "service_tier": "auto",
    "stop": ["zzz"],
    "store": True,
    "stream": True,
    "suffix": "the end",
    "temperature": 0.5,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 1,
    "top_p": 0.9,
    "truncation": "auto",
    "user": "u",
    "verbosity": "low",
    "web_search_options": {},
}
"""A value of each field that asks for something; of fields that differ by endpoint, in SPECIAL."""
SPECIAL: dict[tuple[str, str], Any] = {
    ("/v1/chat/completions", "logprobs"): True,
    ("/v1/completions", "logprobs"): 1,
    ("/v1/chat/completions", "tools"): [CHAT_TOOL],
    ("/v1/responses", "tools"): [RESPONSES_TOOL],
    ("/v1/responses", "prompt"): {"id": "pmpt_1"},
    ("/v1/responses", "stream_options"): {"include_obfuscation": False},
}
BESIDE: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
"""What a field needs beside it."""


def main() -> None:
    """Ask and print."""
    parser = command_line(__doc__, quick="a fake engine: proves that the script runs")
    parser.add_home()
    options = parser.parse_args()
    use_home(options.home)
    embedding = () if options.quick else NEEDS_EMBEDDINGS
    with quick_fleet() if options.quick else real_fleet(TOOL_FLAGS) as (url, model):
        found = asyncio.run(send_fields(url, model))
        failed = asyncio.run(make_calls(url, model, [it for it in CALLS if it not in embedding]))
        ids = asyncio.run(ids_of_requests(url, model))
        found |= try_ids(url, ids[:QUICK_IDS] if options.quick else ids)
    if embedding:
        with real_fleet(POOLING_FLAGS) as (url, model):
            failed |= asyncio.run(make_calls(url, model, embedding))
    found |= compare_without_keys(quick=options.quick)
    found["differing"] = found.get("differing", {}) | found.pop("fields_differing")
    record = {
        **found,
        "sdk_calls": len(CALLS),
        "sdk_passed": len(CALLS) - len(failed),
        "sdk_failed": failed,
        "quick": options.quick,
        "openai": openai.__version__,
        "anthropic": anthropic.__version__,
        "interpreter": platform.python_version(),
        "build": phasewise.__version__,
    }
    print_record(record, options)


@contextmanager
def quick_fleet() -> Iterator[tuple[str, str]]:
    """A gateway in front of a fake engine."""
    os.environ["PHASEWISE_ADMIN_KEY"] = ADMIN_KEY
    settings = {"admin_key_sha256": key_sha256(ADMIN_KEY)}
    with fake_engines(1, QUICK_COST, QUICK_SHAPE) as urls, gateway(urls, 8, settings) as front:
        yield front.url, MODEL


@contextmanager
def real_fleet(flags: list[str], *options: str) -> Iterator[tuple[str, str]]:
    """A gateway in front of an engine with the demo model and these flags; `options` are those of `up`."""
    engine_port, gateway_port = free_ports()
    settings = {
        "name": FLEET,
        "first_engine_port": engine_port,
        "pools": [{"name": "engines", "engine_flags": flags}],
        "gateway": {"port": gateway_port},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        # YAML reads JSON too.
        file.write_text(json.dumps(settings))
        try:
            state = run_phasewise("up", str(file), "--detach", *options)
            yield state["gateway"]["url"], state["model"]
        finally:
            run_phasewise("down", FLEET)


def compare_without_keys(*, quick: bool) -> dict[str, Any]:
    """Paths and fields of an engine without a key, sent directly and through a gateway without keys."""
    if quick:
        with fake_engines(1, QUICK_COST, QUICK_SHAPE) as urls, gateway(urls, 8, {}) as front:
            return asyncio.run(compare_fields(urls[0], front.url, MODEL, quick=True))
    with real_fleet(TOOL_FLAGS, "--no-engine-keys") as (url, model):
        engine = run_phasewise("status")["fleets"][0]["engines"][0]["url"]
        paths = asyncio.run(compare_paths(engine, url, model))
        return paths | asyncio.run(compare_fields(engine, url, model, quick=False))


async def make_calls(url: str, model: str, calls: Iterable[Call]) -> dict[str, str]:
    """Make these calls; those that failed, with what the client raised."""
    failed: dict[str, str] = {}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as other,
    ):
        for call in calls:
            try:
                await call(Clients(one, other, model))
            except Exception as error:  # whatever a client raises is a failed call
                failed[call.__name__] = f"{type(error).__name__}: {error}"[:300]
                say(f"{call.__name__}: {failed[call.__name__]}")
    return failed


async def send_fields(url: str, model: str) -> dict[str, Any]:
    """Each field of OpenAI's request types by itself."""
    accepted = answered = 0
    rejected: list[str] = []
    client = HttpClient(url, PATIENCE)
    asked = [
        (path, name)
        for path, fields in TYPES.items()
        for name in sorted({*fields.__annotations__, *(["stream"] if path != "/v1/embeddings" else [])})
    ]
    try:
        for path, name in asked:
            body = body_with(path, name, model)
            reply = await client.fetch(
                "POST", path, headers=[(b"content-type", b"application/json")], body=orjson.dumps(body)
            )
            if is_gateways_rejection(reply.status, reply.body):
                rejected.append(f"{path} {name}")
                say(f"{path} {name}: {reply.body.decode(errors='replace')[:200]}")
            else:
                accepted += 1
                answered += reply.status == 200
    finally:
        client.close()
    return {
        "openai_fields": len(asked),
        "openai_fields_accepted": accepted,
        "openai_fields_answered": answered,
        "openai_fields_rejected": rejected,
    }


async def ids_of_requests(url: str, model: str) -> list[tuple[str, str]]:
    """A request of each endpoint: its gateway's id, with every id that its user can have."""
    client, found = HttpClient(url, PATIENCE), []
    paths = {path: LEAST[path] for path in TYPES if path != "/v1/embeddings"}
    paths["/v1/messages"] = {"messages": TURN, "max_tokens": 4}
    try:
        for number, (path, least) in enumerate(paths.items()):
            own = f"checkout-{number}-{os.getpid()}"
            headers = [(b"content-type", b"application/json"), (b"x-request-id", own.encode())]
            body = orjson.dumps({"model": model, **least})
            reply = await client.fetch("POST", path, headers=headers, body=body)
            gateways = dict(reply.headers)[b"x-request-id"].decode()
            engines = str(orjson.loads(reply.body)["id"])
            bare = engines.removeprefix("chatcmpl-").removeprefix("cmpl-").removeprefix("resp_")
            found += [(gateways, it) for it in (gateways, engines, bare, own, gateways[:BEGINNING], own[:-1])]
    finally:
        client.close()
    return found


def try_ids(url: str, ids: list[tuple[str, str]]) -> dict[str, Any]:
    """Which of them `phasewise explain` takes, as pairs with the request's id."""
    rejected = []
    for request, it in ids:
        try:
            explained = run_phasewise("explain", it, "--gateway", url)
        except subprocess.CalledProcessError:
            explained = {"timeline": {"id": None}}
        if explained["timeline"]["id"] != request:
            rejected.append(it)
            say(f"explain {it}: not found")
    return {"ids_tried": len(ids), "ids_accepted": len(ids) - len(rejected), "ids_rejected": rejected}


def body_with(path: str, name: str, model: str) -> dict[str, Any]:
    """The least that the endpoint needs, and this field."""
    beside = BESIDE.get(name, {}) if path != "/v1/responses" else {}
    body = {"model": model, **LEAST[path], **beside}
    if name not in body:
        if name == "stream_options" and path != "/v1/responses":
            body[name] = {"include_usage": True}
        elif (path, name) in SPECIAL or name in VALUES:
            body[name] = SPECIAL.get((path, name), VALUES.get(name))
        else:
            sys.exit(f"{name} is a new field of the openai package: give it a value in VALUES")
    return body


def is_gateways_rejection(status: int, body: bytes) -> bool:
    """Whether the gateway itself rejected the fields; its codes are words, an engine's are numbers."""
    if status != 400:
        return False
    said = orjson.loads(body)
    return isinstance(said, dict) and said.get("error", {}).get("code") == "bad_request"


if __name__ == "__main__":
    main()

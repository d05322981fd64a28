"""What is asked of an address before the load starts: its model, its context, its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from urllib.parse import quote

import orjson

from phasewise.benchmark.workload.drafts import PlannedRequest
from phasewise.benchmark.workload.plan import Fit, Plan, refitted
from phasewise.benchmark.workload.prompts import A_WORD_A_TOKEN, WORDS, Message, TextRuler, stream, word_count
from phasewise.clients.http_client import Headers, HttpClient, Reply, no_answer
from phasewise.core.errors import ConfigError, EngineUnreachable, FailureKind, UpstreamError, UsageError

FIT_ROUNDS = 12
"""One round fixes a prompt whose words are single tokens; where some are split, other words are tried."""
FIT_LIMIT = 8_000
"""How many prompts are fitted, starting with those that are sent first. An engine answers in 2 to 4 ms,
hardly counts two at once, and most prompts need two requests: that is about half a minute, the most to wait
before a run. A minute of 32 slots needs fewer."""
FIT_AT_ONCE = 8
"""How many tokenizer requests are open at once: enough to hide the round trips."""
FIT_SEED_WORDS = 8
WORKERS_PATH = "/phasewise/v1/workers"
UNAUTHENTICATED = 401
MOST_WORKERS = 16
"""A page of counters has some 60 kB and is read once a second from every engine."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, the model to use there, and the credentials.

    `root` is the model that the server says it loaded, a folder of its own or a hub id. `workers` are the
    engines behind a gateway that serve the model; it shows their counters and tokenizer for its `admin` key.
    `out` are those that it does not use, each with its state, of `engines` in all.
    """

    url: str
    model: str
    context_tokens: int | None = None
    root: str | None = None
    headers: Headers = field(default=(), repr=False)
    workers: tuple[str, ...] = ()
    admin: Headers = field(default=(), repr=False)
    engines: int = 0
    out: tuple[str, ...] = ()

    @property
    def counter_paths(self) -> tuple[str, ...]:
        """Where the counters of each engine are."""
        return tuple(f"{worker_path(name)}/metrics" for name in self.workers) or ("/metrics",)

    @property
    def tokenizer_path(self) -> str:
        """Where the model's tokenizer is."""
        return f"{worker_path(self.workers[0])}/tokenize" if self.workers else "/tokenize"


async def find_target(
    client: HttpClient, model: str | None = None, api_key: str | None = None, admin_key: str | None = None
) -> Target:
    """Ask the address which models it serves; the first one is used unless one is named."""
    headers = request_headers(api_key)
    reply = await _ask(client, headers)
    if reply.status in {401, 403}:
        what = "does not know this API key" if api_key else "requires an API key"
        raise ConfigError(f"{client.base_url} {what}", hint="give --api-key or set PHASEWISE_API_KEY")
    served = _served_models(reply)
    if model is None and not served:
        raise ConfigError(f"{client.base_url} does not say which models it serves", hint="give --model NAME")
    name = model or next(iter(served))
    if served and name not in served:
        raise ConfigError(
            f"{client.base_url} does not serve {name!r}", hint=f"it serves {', '.join(sorted(served))}"
        )
    entry = served.get(name, {})
    admin = request_headers(admin_key) if admin_key else ()
    target = Target(client.base_url, name, _context_tokens(entry), _root(entry), headers, admin=admin)
    found = await _workers_of(client, target)
    up = tuple(str(worker["name"]) for worker in found if worker.get("health") == "up")
    workers = up if len(up) <= MOST_WORKERS else ()
    return replace(target, workers=workers, engines=len(found), out=_out_of_service(found))


async def looked_at_again(client: HttpClient, target: Target) -> Target:
    """The target with the engines that have gone out of service since."""
    out = _out_of_service(await _workers_of(client, target))
    return replace(target, out=tuple(dict.fromkeys((*target.out, *out))))


def _out_of_service(workers: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(
        f"{worker['name']} ({worker.get('health')})" for worker in workers if worker.get("health") != "up"
    )


async def _workers_of(client: HttpClient, target: Target) -> list[dict[str, Any]]:
    """The engines behind a gateway that serve the model, or did not say yet; empty if this is none."""
    if not target.admin:
        return []
    try:
        # Without the key first: only a gateway asks for one here, and nobody else gets it.
        if (await client.fetch("GET", WORKERS_PATH)).status != UNAUTHENTICATED:
            return []
        reply = await client.fetch("GET", WORKERS_PATH, headers=target.admin)
    except UpstreamError:
        return []
    workers = _json(reply).get("workers") if reply.status == 200 else None
    listed = workers if isinstance(workers, list) else []
    return [worker for worker in listed if worker.get("model") in {target.model, ""}]


def worker_path(name: str) -> str:
    """Where a gateway shows what a worker itself answers."""
    return f"{WORKERS_PATH}/{quote(name, safe='')}"


def request_headers(api_key: str | None) -> Headers:
    """The headers of every request.

    A key from a file may end in a newline, which is not part of it. Other control characters would end the
    header early; such a key is rejected, and not shown.
    """
    key = (api_key or "").strip()
    if not key.isprintable():
        raise UsageError(
            "the API key holds a line break or another character that cannot be sent",
            hint="give --api-key or PHASEWISE_API_KEY the key alone, on one line",
        )
    headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream, application/json")]
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return tuple(headers)


async def fit_prompts(client: HttpClient, target: Target, plan: Plan, rng: Random) -> Plan:
    """Make threads' first prompts exactly as long as planned, if the address has a tokenizer.

    Later turns follow from the engine's replies, which do not exist yet. The returned plan says how many
    prompts were counted and how many of them could not be made exact.
    """
    salt = rng.getrandbits(64)
    waiting = enumerate(plan.threads[:FIT_LIMIT])
    fitted = list(plan.threads)
    off_tokens: list[int] = []
    uncounted = False

    async def work_off() -> None:
        nonlocal uncounted
        # If one gets no answer, the others stop too: they would get none either.
        while not uncounted and (taken := next(waiting, None)) is not None:
            place, thread = taken
            first = await _fit(client, target, thread[0], salt)
            if first is None:
                uncounted = True
            else:
                off_by = abs(first.prompt_tokens - thread[0].prompt_tokens)
                # A written prompt is sent as it is, whatever its length.
                off_tokens.append(0 if first.as_written else off_by)
                longer = first.prompt_tokens - thread[0].prompt_tokens
                later = (replace(turn, prompt_tokens=turn.prompt_tokens + longer) for turn in thread[1:])
                fitted[place] = (first, *later)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(FIT_AT_ONCE):
            tasks.create_task(work_off())
    if uncounted:
        return plan
    fit = Fit(len(off_tokens), off=sum(map(bool, off_tokens)), most_off_tokens=max(off_tokens, default=0))
    return replace(plan, threads=tuple(fitted), fit=fit)


async def ruler_of(client: HttpClient, target: Target) -> TextRuler:
    """How the address counts tokens: of our words as often as they are drawn, and of its chat template."""
    words = " ".join(WORDS)
    texts = (words, f"{words} {words}")
    once, twice = [await count_prompt_tokens(client, target, (Message("user", text),)) for text in texts]
    if once is None or twice is None or twice <= once:
        return A_WORD_A_TOKEN
    return TextRuler((twice - once) / len(WORDS), max(2 * once - twice, 0))


async def count_prompt_tokens(client: HttpClient, target: Target, messages: Sequence[Message]) -> int | None:
    """How many tokens a conversation has with its template; None if the server does not say."""
    body = orjson.dumps({"model": target.model, "messages": messages})
    try:
        headers = target.admin if target.workers else target.headers
        reply = await client.fetch("POST", target.tokenizer_path, headers=headers, body=body)
    except UpstreamError:
        return None
    count = _json(reply).get("count") if reply.status == 200 else None
    return count if isinstance(count, int) else None


async def _fit(
    client: HttpClient, target: Target, planned: PlannedRequest, salt: int
) -> PlannedRequest | None:
    # Trimmed at the end of the text, so that equal prompts stay equal, whatever other prompts are counted at
    # the same time and whatever a run's opening is.
    rng = stream(salt, *planned.messages[-1].content.rsplit(" ", FIT_SEED_WORDS)[-FIT_SEED_WORDS:])
    tokens_per_word = 1.0
    before: tuple[int, int] | None = None
    for _ in range(FIT_ROUNDS):
        counted = await count_prompt_tokens(client, target, planned.messages)
        if counted is None:
            return None
        words = word_count(planned.messages[-1].content)
        if before is not None and words != before[1]:
            tokens_per_word = max((counted - before[0]) / (words - before[1]), 1.0)
        before = counted, words
        resized = refitted(planned, counted, rng, tokens_per_word)
        if resized == planned:
            # As long as planned, or no shorter without changing what is shared: then the plan changes.
            return replace(planned, prompt_tokens=counted)
        planned = resized
    counted = await count_prompt_tokens(client, target, planned.messages)
    return None if counted is None else replace(planned, prompt_tokens=counted)


async def _ask(client: HttpClient, headers: Headers) -> Reply:
    try:
        return await client.fetch("GET", "/v1/models", headers=headers)
    except UpstreamError as error:
        if error.kind is FailureKind.PROTOCOL:
            raise
        raise EngineUnreachable(
            no_answer(client.base_url, error),
            hint="check the address and that the engine is ready: its /health answers 200",
        ) from error


def _served_models(reply: Reply) -> dict[str, dict[str, Any]]:
    models = _json(reply).get("data") if reply.status == 200 else None
    if not isinstance(models, list):
        return {}
    return {entry["id"]: entry for entry in models if isinstance(entry, dict) and "id" in entry}


def _context_tokens(entry: dict[str, Any]) -> int | None:
    tokens = entry.get("max_model_len")
    return tokens if isinstance(tokens, int) else None


def _root(entry: dict[str, Any]) -> str | None:
    root = entry.get("root")
    return root if isinstance(root, str) else None


def _json(reply: Reply) -> dict[str, Any]:
    try:
        body = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        return {}
    return body if isinstance(body, dict) else {}

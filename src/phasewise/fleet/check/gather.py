"""Asks every engine for its settings, and has every pair transfer the KV of one small prompt.

Engines are asked concurrently; the pairs of one decode engine run in sequence, so that its counters show one
trial. A trial that does not end in time is returned as not ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any

import orjson

from phasewise.clients.engine_metrics import fetch_page, fetch_text, read_metrics
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.kv_trial import TrialAnswer, ask, growth_since, speaks_side_channel, trial_prompt
from phasewise.core.engine_metrics import EngineSeries
from phasewise.core.errors import FailureKind, UpstreamError
from phasewise.core.kv_transfer import ASKS_TO_KEEP_KV, KvProof
from phasewise.core.worker import Role
from phasewise.engines.known import read_page
from phasewise.fleet.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts
from phasewise.fleet.config import WorkerConfig
from phasewise.fleet.config.credentials import access_of

PROMPT_TOKENS = 300
OUTPUT_TOKENS = 4
QUICK = Timeouts(connect_s=1.5, head_s=3.0, idle_s=3.0)
ANSWER_WITHIN = Timeouts(connect_s=1.5, head_s=7.0, idle_s=7.0)
"""vLLM gives up on a side channel after 5 s and reports it: what takes longer hangs."""
SIDE_CHANNEL_S = 2.0
WITHIN_S = 9.0
"""A check must end within 10 s, even when many pairs wait for engines that do not answer."""
TRIES = 3
"""How often to try a pair whose proof is hidden by other requests, or whose texts differ."""
CLOSED_PORT = 1
"""Nothing listens there."""


@dataclass(frozen=True, slots=True)
class _CheckedEngine:
    """An engine, its connections and its settings."""

    config: WorkerConfig
    quick: HttpClient
    patient: HttpClient
    facts: EngineFacts
    turn: asyncio.Lock

    @property
    def model(self) -> str:
        models = self.facts.models
        return self.config.model if self.config.model in models or not models else models[0]


_TransferTrial = tuple[TrialFacts, Mapping[str, Any]]
"""What a trial showed, and the KV's location from the prefill engine."""


async def gather_facts(
    workers: Sequence[WorkerConfig], *, test_failure: bool = True, within_s: float = WITHIN_S
) -> FleetFacts:
    """See all engines and try all pairs; `test_failure` asks decode engines for KV that nobody has."""
    until_s = asyncio.get_running_loop().time() + within_s
    engines = await asyncio.gather(*map(_meet, workers))
    try:
        tried = await asyncio.gather(*(_try_pair(*pair, until_s) for pair in _each_pair(engines)))
        policies = await _failure_policies(engines, tried, until_s) if test_failure else {}
    finally:
        for engine in engines:
            engine.quick.close()
            engine.patient.close()
    checked = (
        replace(engine.facts, recomputes_on_failure=policies.get(engine.config.name)) for engine in engines
    )
    return FleetFacts(tuple(checked), tuple(facts for facts, _ in tried))


def _each_pair(engines: Sequence[_CheckedEngine]) -> Iterator[tuple[_CheckedEngine, _CheckedEngine]]:
    ready = [engine for engine in engines if engine.facts.ready]
    for prefill in (engine for engine in ready if engine.config.role is Role.PREFILL):
        for decode in (engine for engine in ready if engine.config.role is Role.DECODE):
            if prefill.config.model == decode.config.model:
                yield prefill, decode


# --- engines ----------------------------------------------------------------------------------------------


async def _meet(config: WorkerConfig) -> _CheckedEngine:
    access = access_of(config)
    quick, patient = (HttpClient(config.url, timeouts, access) for timeouts in (QUICK, ANSWER_WITHIN))
    facts = EngineFacts(config.name, config.role, config.model)
    try:
        health = await quick.fetch("GET", "/health")
        if health.status != 200:
            facts = replace(facts, silence=f"/health answered {health.status}")
        else:
            facts = await _described(facts, quick)
    except UpstreamError as error:
        facts = replace(facts, silence=error.message)
    return _CheckedEngine(config, quick, patient, facts, asyncio.Lock())


async def _described(facts: EngineFacts, client: HttpClient) -> EngineFacts:
    names, loaded_from = await _models(client)
    text, now_s = await fetch_text(client), time.time()
    seen = read_metrics(text, now_s)
    cache = seen.infos.get(EngineSeries.CACHE_CONFIG, {})
    return replace(
        facts,
        models=names,
        loaded_from=loaded_from,
        block_tokens=seen.block_tokens,
        cache_dtype=cache.get("cache_dtype"),
        has_connector=read_page(text, now_s).kv.has_connector,
    )


async def _models(client: HttpClient) -> tuple[tuple[str, ...], str | None]:
    reply = await client.fetch("GET", "/v1/models")
    try:
        listed = orjson.loads(reply.body)["data"]
        names = tuple(str(model["id"]) for model in listed)
        roots = [model["root"] for model in listed if model.get("parent") is None and model.get("root")]
    except (ValueError, LookupError, TypeError):
        raise UpstreamError(
            FailureKind.PROTOCOL, "/v1/models does not answer with a list of models"
        ) from None
    return names, str(roots[0]) if roots else None


# --- pairs ------------------------------------------------------------------------------------------------


async def _try_pair(prefill: _CheckedEngine, decode: _CheckedEngine, until_s: float) -> _TransferTrial:
    """A conclusive trial, or the last of a few; within its time."""
    trial: _TransferTrial = TrialFacts(prefill.config.name, decode.config.name, ended=False), {}
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until_s), decode.turn:
            for _ in range(TRIES):
                facts, _ = trial = await _kv_transfer(prefill, decode)
                # Engines may choose differently between two tokens that are nearly as likely.
                if facts.proof is not KvProof.HIDDEN and facts.same_text is not False:
                    break
    return trial


async def _kv_transfer(prefill: _CheckedEngine, decode: _CheckedEngine) -> _TransferTrial:
    facts = TrialFacts(prefill.config.name, decode.config.name)
    prompt = trial_prompt(PROMPT_TOKENS, SystemRandom())
    try:
        kept = await ask(prefill.patient, prefill.model, prompt, 1, ASKS_TO_KEEP_KV)
    except UpstreamError as error:
        return replace(facts, prefill_problem=error.message), {}
    if not kept.ok:
        return replace(facts, prefill_problem=f"it answered HTTP {kept.status}"), {}
    facts = replace(
        facts,
        gave_ticket=bool(kept.params),
        prompt_tokens=kept.account.prompt_tokens,
        computing_s=kept.account.prefill_s,
    )
    if not kept.params:
        return facts, {}
    side, (facts, answer) = await asyncio.gather(
        _side_channel(kept.params), _fetch_and_write(decode, prompt, kept.params, facts)
    )
    address = f"{kept.params.get('remote_host')}:{kept.params.get('remote_port')}"
    facts = replace(facts, side_address=address, side_channel=side)
    if answer is not None:
        facts = await _with_text(facts, prefill, prompt, answer)
    return facts, kept.params


async def _fetch_and_write(
    decode: _CheckedEngine, prompt: str, params: Mapping[str, Any], facts: TrialFacts
) -> tuple[TrialFacts, TrialAnswer | None]:
    """The decode engine's half, between two readings of its counters."""
    try:
        before = (await fetch_page(decode.quick)).kv
        answer = await ask(decode.patient, decode.model, prompt, OUTPUT_TOKENS, params)
        if not answer.ok:
            return replace(facts, decode_problem=f"it answered HTTP {answer.status}"), None
        account, cached_tokens = answer.account, answer.account.cached_tokens or 0
        unread_tokens = (facts.prompt_tokens or 1) - cached_tokens
        grown = await growth_since(decode.quick, before, unread_tokens)
    except UpstreamError as error:
        hangs = error.kind is FailureKind.TIMED_OUT
        return replace(facts, decode_problem=error.message, decode_timed_out=hangs), None
    counted = replace(
        facts,
        cached_tokens=cached_tokens,
        moved_tokens=grown.moved_tokens,
        computed_tokens=grown.computed_tokens,
        moved_bytes=grown.moved_bytes,
        moving_s=grown.moving_s,
        kv_transfer_s=account.queue_s,
        first_token_s=account.prefill_s,
    )
    return counted, answer


async def _with_text(
    facts: TrialFacts, prefill: _CheckedEngine, prompt: str, answer: TrialAnswer
) -> TrialFacts:
    """Whether the engine that computed the prompt writes the same text as the one that fetched its KV."""
    try:
        alone = await ask(prefill.patient, prefill.model, prompt, OUTPUT_TOKENS)
    except UpstreamError:
        return facts
    return replace(facts, same_text=alone.text == answer.text) if alone.ok else facts


async def _side_channel(params: Mapping[str, Any]) -> SideChannel:
    host, port = params.get("remote_host"), params.get("remote_port")
    if not isinstance(host, str) or not isinstance(port, int):
        return SideChannel.NOT_TRIED
    try:
        greets = await speaks_side_channel(host, port, SIDE_CHANNEL_S)
    except TimeoutError:
        return SideChannel.SILENT
    except (OSError, OverflowError):
        return SideChannel.NOBODY
    return SideChannel.ANSWERS if greets else SideChannel.STRANGER


# --- what a decode engine does when KV cannot be fetched ----------------------------------------------------


async def _failure_policies(
    engines: Sequence[_CheckedEngine], tried: Sequence[_TransferTrial], until_s: float
) -> dict[str, bool]:
    """Whether decode engines of proven pairs silently recompute what they cannot fetch."""
    shapes = {facts.decode: params for facts, params in tried if facts.proven}
    asked = [engine for engine in engines if engine.config.name in shapes]
    said = await asyncio.gather(
        *(_recomputes(engine, shapes[engine.config.name], until_s) for engine in asked)
    )
    return {engine.config.name: yes for engine, yes in zip(asked, said, strict=True) if yes is not None}


async def _recomputes(decode: _CheckedEngine, like: Mapping[str, Any], until_s: float) -> bool | None:
    """Point the engine at KV of an engine that does not exist, in the format of one that does."""
    nobody = f"phasewise-check-{SystemRandom().randrange(1 << 48):012x}"
    nowhere = {"remote_engine_id": nobody, "remote_request_id": nobody, "remote_port": CLOSED_PORT}
    # Shorter than the prompt of these parameters: an engine may check the number of blocks first.
    prompt = trial_prompt(PROMPT_TOKENS // 2, SystemRandom())
    try:
        async with asyncio.timeout_at(until_s):
            return (await ask(decode.patient, decode.model, prompt, 1, {**like, **nowhere})).ok
    except (UpstreamError, TimeoutError):
        return None

"""Asks every engine what it is and has every pair hand over one small prompt. Judging is judgement.py's.

Engines are asked at the same time; pairs one after another per decode engine, so that its counters tell of
one trial. What has not ended in time is given back as such.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Any

import orjson

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.adapters.kv_trial import (
    TrialAnswer,
    ask,
    growth_since,
    speaks_side_channel,
    trial_prompt,
)
from phasewise.adapters.vllm_kv_counters import fetch_kv_counters
from phasewise.adapters.vllm_metrics import fetch_metrics
from phasewise.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts
from phasewise.config import WorkerConfig
from phasewise.errors import FailureKind, UpstreamError
from phasewise.model.hand_over import ASKS_TO_KEEP_KV
from phasewise.model.kv_proof import KvProof
from phasewise.model.worker import Role

PROMPT_TOKENS = 300
OUTPUT_TOKENS = 4
QUICK = Timeouts(connect_s=1.5, head_s=3.0, idle_s=3.0)
ANSWER_WITHIN = Timeouts(connect_s=1.5, head_s=7.0, idle_s=7.0)
"""vLLM gives up on a side channel after 5 s and then says so: what takes longer hangs."""
SIDE_CHANNEL_S = 2.0
WITHIN_S = 9.0
"""A check is to be over in 10 s, however many pairs wait for engines that do not answer."""
TRIES = 3
"""How often a pair is tried whose proof is hidden by other requests, or whose texts differ."""
CLOSED_PORT = 1
"""Nobody serves there."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine, its connections and what it said of itself."""

    config: WorkerConfig
    quick: HttpClient
    patient: HttpClient
    facts: EngineFacts
    turn: asyncio.Lock

    @property
    def model(self) -> str:
        models = self.facts.models
        return self.config.model if self.config.model in models or not models else models[0]


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a trial showed, and where the prefill engine said that its KV lay."""

    facts: TrialFacts
    params: Mapping[str, Any] = field(default_factory=dict)


async def gather_facts(
    workers: Sequence[WorkerConfig], *, provoke_failure: bool = True, within_s: float = WITHIN_S
) -> FleetFacts:
    """See all engines and try all pairs; `provoke_failure` asks decode engines for KV that nobody has."""
    until_s = asyncio.get_running_loop().time() + within_s
    engines = await asyncio.gather(*map(_meet, workers))
    try:
        tried = await asyncio.gather(*(_try_pair(*pair, until_s) for pair in _each_pair(engines)))
        policies = await _failure_policies(engines, tried, until_s) if provoke_failure else {}
    finally:
        for engine in engines:
            engine.quick.close()
            engine.patient.close()
    facts = (replace(it.facts, recomputes_on_failure=policies.get(it.config.name)) for it in engines)
    return FleetFacts(tuple(facts), tuple(it.facts for it in tried))


def _each_pair(engines: Sequence[_Engine]) -> Iterator[tuple[_Engine, _Engine]]:
    ready = [it for it in engines if it.facts.ready]
    for prefill in (it for it in ready if it.config.role is Role.PREFILL):
        for decode in (it for it in ready if it.config.role is Role.DECODE):
            if prefill.config.model == decode.config.model:
                yield prefill, decode


# --- engines ----------------------------------------------------------------------------------------------


async def _meet(config: WorkerConfig) -> _Engine:
    quick, patient = HttpClient(config.url, QUICK), HttpClient(config.url, ANSWER_WITHIN)
    facts = EngineFacts(config.name, config.role, config.model)
    try:
        health = await quick.fetch("GET", "/health")
        if health.status != 200:
            facts = replace(facts, silence=f"/health answered {health.status}")
        else:
            facts = await _described(facts, quick)
    except UpstreamError as error:
        facts = replace(facts, silence=error.message)
    return _Engine(config, quick, patient, facts, asyncio.Lock())


async def _described(facts: EngineFacts, client: HttpClient) -> EngineFacts:
    names, loaded_from = await _models(client)
    seen = await fetch_metrics(client)
    cache = seen.infos.get("cache_config_info", {})
    return replace(
        facts,
        models=names,
        loaded_from=loaded_from,
        block_tokens=seen.block_tokens,
        cache_dtype=cache.get("cache_dtype"),
        has_connector=(await fetch_kv_counters(client)).has_connector,
    )


async def _models(client: HttpClient) -> tuple[tuple[str, ...], str | None]:
    reply = await client.fetch("GET", "/v1/models")
    try:
        listed = orjson.loads(reply.body)["data"]
        names = tuple(str(it["id"]) for it in listed)
        roots = [it["root"] for it in listed if it.get("parent") is None and it.get("root")]
    except (ValueError, LookupError, TypeError):
        raise UpstreamError(
            FailureKind.PROTOCOL, "/v1/models does not answer with a list of models"
        ) from None
    return names, str(roots[0]) if roots else None


# --- pairs ------------------------------------------------------------------------------------------------


async def _try_pair(prefill: _Engine, decode: _Engine, until_s: float) -> _Trial:
    """A trial that leaves no doubt, or the last of a few; in its time."""
    trial = _Trial(TrialFacts(prefill.config.name, decode.config.name, ended=False))
    with suppress(TimeoutError):
        async with asyncio.timeout_at(until_s), decode.turn:
            for _ in range(TRIES):
                trial = await _hand_over(prefill, decode)
                # Of two tokens that are nearly as likely, engines may write either once.
                if trial.facts.proof is not KvProof.HIDDEN and trial.facts.same_text is not False:
                    break
    return trial


async def _hand_over(prefill: _Engine, decode: _Engine) -> _Trial:
    facts = TrialFacts(prefill.config.name, decode.config.name)
    prompt = trial_prompt(PROMPT_TOKENS, SystemRandom())
    try:
        kept = await ask(prefill.patient, prefill.model, prompt, 1, ASKS_TO_KEEP_KV)
    except UpstreamError as error:
        return _Trial(replace(facts, prefill_problem=error.message))
    if not kept.ok:
        return _Trial(replace(facts, prefill_problem=f"it answered HTTP {kept.status}"))
    facts = replace(
        facts,
        gave_ticket=bool(kept.params),
        prompt_tokens=kept.prompt_tokens,
        computing_s=kept.prefill_s,
    )
    if not kept.params:
        return _Trial(facts)
    side, (facts, answer) = await asyncio.gather(
        _side_channel(kept.params), _fetch_and_write(decode, prompt, kept.params, facts)
    )
    facts = replace(facts, side_address=_address(kept.params), side_channel=side)
    if answer is not None:
        facts = await _with_text(facts, prefill, prompt, answer)
    return _Trial(facts, kept.params)


async def _fetch_and_write(
    decode: _Engine, prompt: str, params: Mapping[str, Any], facts: TrialFacts
) -> tuple[TrialFacts, TrialAnswer | None]:
    """The decode engine's half, between two looks at its counters."""
    try:
        before = await fetch_kv_counters(decode.quick)
        answer = await ask(decode.patient, decode.model, prompt, OUTPUT_TOKENS, params)
        if not answer.ok:
            return replace(facts, decode_problem=f"it answered HTTP {answer.status}"), None
        unread_tokens = (facts.prompt_tokens or 1) - answer.cached_tokens
        grown = await growth_since(decode.quick, before, unread_tokens)
    except UpstreamError as error:
        hangs = error.kind is FailureKind.TIMED_OUT
        return replace(facts, decode_problem=error.message, decode_timed_out=hangs), None
    counted = replace(
        facts,
        cached_tokens=answer.cached_tokens,
        moved_tokens=grown.moved_tokens,
        computed_tokens=grown.computed_tokens,
        moved_bytes=grown.moved_bytes,
        moving_s=grown.moving_s,
        hand_over_s=answer.queue_s,
        first_token_s=answer.prefill_s,
    )
    return counted, answer


async def _with_text(facts: TrialFacts, prefill: _Engine, prompt: str, answer: TrialAnswer) -> TrialFacts:
    """Whether the engine that computed the prompt writes the same; the other one has its KV from there."""
    try:
        alone = await ask(prefill.patient, prefill.model, prompt, OUTPUT_TOKENS)
    except UpstreamError:
        return facts
    return replace(facts, same_text=alone.text == answer.text) if alone.ok else facts


def _address(params: Mapping[str, Any]) -> str:
    return f"{params.get('remote_host')}:{params.get('remote_port')}"


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


# --- what a decode engine does when KV cannot be had --------------------------------------------------------


async def _failure_policies(
    engines: Sequence[_Engine], tried: Sequence[_Trial], until_s: float
) -> dict[str, bool]:
    """Whether decode engines of proven pairs compute by themselves what they cannot fetch."""
    shapes = {it.facts.decode: it.params for it in tried if it.facts.proven}
    asked = [it for it in engines if it.config.name in shapes]
    said = await asyncio.gather(*(_recomputes(it, shapes[it.config.name], until_s) for it in asked))
    return {it.config.name: yes for it, yes in zip(asked, said, strict=True) if yes is not None}


async def _recomputes(decode: _Engine, like: Mapping[str, Any], until_s: float) -> bool | None:
    """Points the engine at KV of an engine that does not exist, in the terms of one that does."""
    nobody = f"phasewise-check-{SystemRandom().randrange(1 << 48):012x}"
    nowhere = {"remote_engine_id": nobody, "remote_request_id": nobody, "remote_port": CLOSED_PORT}
    # Shorter than the prompt whose blocks the terms tell of: an engine may look at their number first.
    prompt = trial_prompt(PROMPT_TOKENS // 2, SystemRandom())
    try:
        async with asyncio.timeout_at(until_s):
            return (await ask(decode.patient, decode.model, prompt, 1, {**like, **nowhere})).ok
    except (UpstreamError, TimeoutError):
        return None

"""Names what keeps engines from handing over KV, from facts alone. Gathering them is gather.py's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from phasewise.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts
from phasewise.model.worker import Role


class Mistake(StrEnum):
    """What is wrong: a closed vocabulary, so that programs can rely on it."""

    # before anything runs
    NO_ENGINE_ENVIRONMENT = "no_engine_environment"
    NO_NIXL = "nixl_not_installed"
    NO_PLUGIN = "plugin_not_installed"
    DOES_NOT_FIT = "does_not_fit_this_machine"
    PORT_TAKEN = "port_taken"
    # engines
    ENGINE_NOT_READY = "engine_not_ready"
    NO_PREFILL_ENGINE = "no_ready_prefill_engine"
    NO_DECODE_ENGINE = "no_ready_decode_engine"
    WRONG_MODEL = "wrong_model"
    # the two sides of a pair
    NO_CONNECTOR_PREFILL = "connector_missing_on_prefill"
    NO_CONNECTOR_DECODE = "connector_missing_on_decode"
    MODEL_DIFFERS = "model_differs"
    BLOCK_SIZE_DIFFERS = "block_size_differs"
    CACHE_DTYPE_DIFFERS = "cache_dtype_differs"
    # the way between them
    SIDE_CHANNEL_WRONG = "wrong_side_channel_port"
    SIDE_CHANNEL_BLOCKED = "side_channel_blocked"
    HANDSHAKE_REFUSED = "handshake_refused"
    TRANSFER_HANGS = "transfer_hangs"
    PREFILL_FAILED = "prefill_failed"
    # answers that look well and are not
    SILENT_FALL_BACK = "silent_fall_back"
    FALL_BACK_ALLOWED = "fall_back_allowed"
    NOT_PROVEN = "not_proven"
    TEXT_DIFFERS = "text_differs"


WARNINGS = frozenset({Mistake.FALL_BACK_ALLOWED, Mistake.TEXT_DIFFERS, Mistake.NO_PLUGIN})
"""Hand-overs work all the same."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake, where it is, in words, and what to do."""

    mistake: Mistake
    where: str
    words: str
    fix: str

    @property
    def is_warning(self) -> bool:
        """Whether hand-overs work all the same."""
        return self.mistake in WARNINGS


def judge(facts: FleetFacts) -> tuple[Finding, ...]:
    """Everything that is wrong, engines first; nothing if every pair is proven."""
    engines = {engine.name: engine for engine in facts.engines}
    found = [*_of_engines(facts.engines), *_of_roles(facts.engines)]
    for trial in facts.trials:
        found += _of_pair(engines[trial.prefill], engines[trial.decode], trial)
    found += _of_failure_policies(facts.engines)
    return tuple(dict.fromkeys(found))


def _of_engines(engines: Iterable[EngineFacts]) -> Iterator[Finding]:
    for it in engines:
        if not it.ready:
            yield Finding(
                Mistake.ENGINE_NOT_READY,
                it.name,
                f"{it.name} is not ready: {it.silence}",
                "start it, or look into its log; `phasewise status` shows a fleet's engines",
            )
        elif it.models and it.wanted_model not in it.models:
            yield Finding(
                Mistake.WRONG_MODEL,
                it.name,
                f"{it.name} serves {', '.join(it.models)} and not {it.wanted_model}, as the file says",
                f"start it with --served-model-name {it.wanted_model}, or correct the file",
            )


def _of_roles(engines: tuple[EngineFacts, ...]) -> Iterator[Finding]:
    names = {Role.PREFILL: Mistake.NO_PREFILL_ENGINE, Role.DECODE: Mistake.NO_DECODE_ENGINE}
    if all(it.role is Role.MIXED for it in engines):
        return
    for role, mistake in names.items():
        if not any(it.role is role and it.ready for it in engines):
            yield Finding(
                mistake,
                f"role {role}",
                f"no {role} engine is ready, so nothing is handed over and every request is served whole",
                f"start an engine of a pool with role: {role}",
            )


def _of_pair(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts) -> Iterator[Finding]:
    where = f"{prefill.name} -> {decode.name}"
    if trial.proven:
        if trial.same_text is False:
            yield _text_differs(where, prefill.name)
        return
    named = [*_sides_differ(prefill, decode, where), *_no_connector(prefill, decode, trial)]
    yield from named
    if trial.prefill_problem is not None:
        yield Finding(
            Mistake.PREFILL_FAILED,
            where,
            f"{prefill.name} did not compute the prompt: {trial.prefill_problem}",
            f"look into the log of {prefill.name}",
        )
    elif not named or any(it.mistake is Mistake.NO_CONNECTOR_DECODE for it in named):
        yield from _of_way(prefill, decode, trial, where, already_named=bool(named))


def _sides_differ(prefill: EngineFacts, decode: EngineFacts, where: str) -> Iterator[Finding]:
    sides = f"{prefill.name} and {decode.name}"
    if prefill.models and decode.models and not set(prefill.models) & set(decode.models):
        theirs = f"{prefill.models[0]} and {decode.models[0]}"
        yield _differ(Mistake.MODEL_DIFFERS, where, sides, "serve different models", theirs, "the same model")
    elif prefill.loaded_from and decode.loaded_from and prefill.loaded_from != decode.loaded_from:
        theirs = f"{prefill.loaded_from} and {decode.loaded_from}"
        said = "serve different models under one name"
        yield _differ(Mistake.MODEL_DIFFERS, where, sides, said, theirs, "the same model")
    if _unlike(prefill.block_tokens, decode.block_tokens):
        theirs = f"{prefill.block_tokens} and {decode.block_tokens} tokens"
        said, same = "have blocks of different size", "the same --block-size"
        yield _differ(Mistake.BLOCK_SIZE_DIFFERS, where, sides, said, theirs, same)
    if _unlike(prefill.cache_dtype, decode.cache_dtype):
        theirs = f"{prefill.cache_dtype} and {decode.cache_dtype}"
        said, same = "keep KV in different types", "the same --kv-cache-dtype (levers.kv_dtype)"
        yield _differ(Mistake.CACHE_DTYPE_DIFFERS, where, sides, said, theirs, same)


def _unlike(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _differ(mistake: Mistake, where: str, sides: str, said: str, theirs: str, same: str) -> Finding:
    return Finding(mistake, where, f"{sides} {said} ({theirs})", f"start both with {same}")


def _no_connector(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts) -> Iterator[Finding]:
    flag = "start it with --kv-transfer-config, which `phasewise up` writes for pools of this role"
    if not trial.gave_ticket and trial.prefill_problem is None:
        words = f"{prefill.name} computes prompts but keeps no KV for others: it has no connector"
        yield Finding(Mistake.NO_CONNECTOR_PREFILL, prefill.name, words, flag)
    if decode.has_connector is False:
        words = (
            f"{decode.name} has no connector: it takes requests with KV to fetch, says nothing, "
            "and computes every prompt a second time"
        )
        yield Finding(Mistake.NO_CONNECTOR_DECODE, decode.name, words, flag)


def _of_way(
    prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts, where: str, *, already_named: bool
) -> Iterator[Finding]:
    """What went wrong between two engines that should understand each other."""
    out_of_reach = trial.side_channel in {SideChannel.NOBODY, SideChannel.SILENT, SideChannel.STRANGER}
    if trial.decode_problem is None:
        if not already_named:
            yield _answered_unproven(prefill, decode, trial, where)
        if out_of_reach and decode.has_connector:
            yield _no_side_channel(prefill, decode, trial, where)
    elif out_of_reach:
        yield _no_side_channel(prefill, decode, trial, where)
    elif trial.decode_timed_out:
        yield Finding(
            Mistake.TRANSFER_HANGS,
            where,
            f"{decode.name} did not get the KV of {prefill.name} in time: {trial.decode_problem}",
            f"see that {prefill.name} is not stopped, and that data ports between the two are open (UCX_TLS)",
        )
    else:
        yield Finding(
            Mistake.HANDSHAKE_REFUSED,
            where,
            f"{decode.name} reached {trial.side_address} but did not take the KV ({trial.decode_problem}): "
            f"either another engine than {prefill.name} answers there, or the two differ in model, dtype, "
            "attention backend or vLLM version",
            f"give every engine a VLLM_NIXL_SIDE_CHANNEL_PORT of its own; the log of {decode.name} says "
            "which (engine ID or compatibility hash mismatch)",
        )


def _no_side_channel(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts, where: str) -> Finding:
    told = f"{prefill.name} says that its KV is asked for at {trial.side_address}"
    if trial.side_channel is SideChannel.SILENT:
        return Finding(
            Mistake.SIDE_CHANNEL_BLOCKED,
            where,
            f"{told}, where nothing answers within seconds: the port is blocked, or the host is out of reach "
            f"for {decode.name}",
            "open the port between the two, or set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that decode "
            "engines reach",
        )
    who = "something else than its side channel listens"
    if trial.side_channel is SideChannel.NOBODY:
        who = "nobody listens"
    return Finding(
        Mistake.SIDE_CHANNEL_WRONG,
        where,
        f"{told}, where {who}",
        f"set VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT of {prefill.name} to where it "
        "listens, a port of its own",
    )


def _answered_unproven(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts, where: str) -> Finding:
    computed = trial.computed_tokens
    if trial.moved_tokens is None or trial.prompt_tokens is None:
        return Finding(
            Mistake.NOT_PROVEN,
            where,
            f"{decode.name} answered, but tells nobody where its prompts' KV came from",
            "start it without --disable-log-stats, with a vLLM that counts prompt_tokens_by_source_total",
        )
    seen = f"{trial.moved_tokens:g} of {trial.prompt_tokens} prompt tokens came from {prefill.name}"
    again = "" if computed is None else f", and it computed {computed:g} itself"
    return Finding(
        Mistake.SILENT_FALL_BACK,
        where,
        f"{decode.name} answered as if all were well, but {seen}{again}: the prompt is computed twice",
        'set "kv_load_failure_policy":"fail" in its --kv-transfer-config, so that failures show, '
        f"and look into its log for why the KV of {prefill.name} was not loaded",
    )


def _text_differs(where: str, prefill: str) -> Finding:
    return Finding(
        Mistake.TEXT_DIFFERS,
        where,
        f"the pair answers one prompt with another text than {prefill} alone",
        "run the check again: two nearly equal tokens may swap once; every time means wrong KV",
    )


def _of_failure_policies(engines: Iterable[EngineFacts]) -> Iterator[Finding]:
    for it in engines:
        if it.recomputes_on_failure:
            yield Finding(
                Mistake.FALL_BACK_ALLOWED,
                it.name,
                f"{it.name} computes a prompt itself when its KV cannot be fetched, without a word",
                'set "kv_load_failure_policy":"fail" in its --kv-transfer-config: the gateway then decides',
            )

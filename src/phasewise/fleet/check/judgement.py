"""Names what keeps engines from transferring KV, from facts alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from phasewise.core.kv_transfer import KvProof
from phasewise.core.units import duration
from phasewise.core.worker import Role
from phasewise.fleet.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts


class Mistake(StrEnum):
    """What is wrong: a closed vocabulary that programs can rely on."""

    # before anything runs
    NO_ENGINE_ENVIRONMENT = "no_engine_environment"
    NO_NIXL = "nixl_not_installed"
    NO_PLUGIN = "plugin_not_installed"
    DOES_NOT_FIT = "does_not_fit_this_machine"
    PORT_TAKEN = "port_taken"
    # engines
    NO_ENGINE_FOUND = "no_engine_found"
    ENGINE_NOT_READY = "engine_not_ready"
    NO_PREFILL_ENGINE = "no_ready_prefill_engine"
    NO_DECODE_ENGINE = "no_ready_decode_engine"
    NO_PAIR = "no_pair_of_one_model"
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
    SIDE_CHANNEL_OUT_OF_REACH = "side_channel_out_of_reach"
    HANDSHAKE_REJECTED = "handshake_rejected"
    TRANSFER_HANGS = "transfer_hangs"
    PREFILL_FAILED = "prefill_failed"
    # answers that look right but are not
    SILENT_FALL_BACK = "silent_fall_back"
    FALL_BACK_ALLOWED = "fall_back_allowed"
    NOT_PROVEN = "not_proven"
    NOT_TRIED = "not_tried"
    TEXT_DIFFERS = "text_differs"


WARNINGS = frozenset(
    {
        Mistake.FALL_BACK_ALLOWED,
        Mistake.TEXT_DIFFERS,
        Mistake.NO_PLUGIN,
        Mistake.SIDE_CHANNEL_OUT_OF_REACH,
    }
)
"""Mistakes in spite of which KV is transferred."""
_OUT_OF_REACH = frozenset({SideChannel.NOBODY, SideChannel.SILENT, SideChannel.STRANGER})
_OF_THE_MODEL = frozenset({"auto", "bfloat16", "float16", "half", "float32", "float"})
"""KV types that `auto` may stand for: the type of the model's weights."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A mistake, where it is, its description, and what to do."""

    mistake: Mistake
    where: str
    words: str
    fix: str

    @property
    def is_warning(self) -> bool:
        """Whether KV transfers work all the same."""
        return self.mistake in WARNINGS


def judge(facts: FleetFacts) -> tuple[CheckFinding, ...]:
    """Everything that is wrong, engines first; nothing if every pair is proven."""
    engines = {engine.name: engine for engine in facts.engines}
    found = [*_of_engines(facts.engines), *_of_roles(facts.engines), *_of_models(facts.engines)]
    for trial in facts.trials:
        if trial.ended:
            found += _of_pair(engines[trial.prefill], engines[trial.decode], trial)
    found += _not_tried([trial for trial in facts.trials if not trial.ended])
    found += _of_failure_policies(facts.engines)
    return tuple(dict.fromkeys(found))


def _of_engines(engines: Iterable[EngineFacts]) -> Iterator[CheckFinding]:
    for engine in engines:
        if not engine.ready:
            yield CheckFinding(
                Mistake.ENGINE_NOT_READY,
                engine.name,
                f"{engine.name} is not ready: {engine.silence}",
                "start it, or read its log; `phasewise status` shows a fleet's engines",
            )
        elif engine.models and engine.wanted_model and engine.wanted_model not in engine.models:
            yield CheckFinding(
                Mistake.WRONG_MODEL,
                engine.name,
                f"{engine.name} serves {', '.join(engine.models)}, but the file says {engine.wanted_model}",
                f"start it with --served-model-name {engine.wanted_model}, or correct the file",
            )


def _of_roles(engines: tuple[EngineFacts, ...]) -> Iterator[CheckFinding]:
    names = {Role.PREFILL: Mistake.NO_PREFILL_ENGINE, Role.DECODE: Mistake.NO_DECODE_ENGINE}
    if all(engine.role is Role.MIXED for engine in engines):
        return
    for role, mistake in names.items():
        if not any(engine.role is role and engine.ready for engine in engines):
            yield CheckFinding(
                mistake,
                f"role {role}",
                f"no {role} engine is ready, so no KV is transferred and one engine serves each request",
                f"start an engine of a pool with role: {role}",
            )


def _of_models(engines: tuple[EngineFacts, ...]) -> Iterator[CheckFinding]:
    """Models with engines of one role only, although the other role has engines."""
    sides = {role: {engine.wanted_model for engine in engines if engine.role is role} for role in Role}
    prefill, decode = sides[Role.PREFILL], sides[Role.DECODE]
    if not prefill or not decode:
        return  # the other role has no engines, which is a finding of its own
    for model in sorted(prefill ^ decode):
        has, lacks = (Role.PREFILL, Role.DECODE) if model in prefill else (Role.DECODE, Role.PREFILL)
        yield CheckFinding(
            Mistake.NO_PAIR,
            f"model {model}",
            f"{model} has {has} engines but no {lacks} engine, so none of its requests is disaggregated",
            f"give {model} an engine with role: {lacks}, or its engines role: mixed",
        )


def _not_tried(trials: list[TrialFacts]) -> Iterator[CheckFinding]:
    if not trials:
        return
    pairs = ", ".join(trial.pair for trial in trials)
    yield CheckFinding(
        Mistake.NOT_TRIED,
        "pairs",
        f"there was no time to try every pair; nothing is known about {pairs}",
        "fix the other findings and check again, or check fewer engines at a time",
    )


def _of_pair(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts) -> Iterator[CheckFinding]:
    """What failed, then how the engines differ, which may be the cause or may be harmless."""
    if trial.proven:
        if trial.same_text is False:
            yield CheckFinding(
                Mistake.TEXT_DIFFERS,
                trial.pair,
                f"the pair answers one prompt with another text than {trial.prefill} alone",
                "run the check again: two nearly equal tokens may swap once; a difference every time means "
                "wrong KV",
            )
        if trial.side_channel in _OUT_OF_REACH:
            yield _out_of_reach(trial)
        return
    differences = list(_sides_differ(prefill, decode, trial))
    if trial.prefill_problem is not None:
        yield CheckFinding(
            Mistake.PREFILL_FAILED,
            trial.pair,
            f"{trial.prefill} did not compute the prompt: {trial.prefill_problem}",
            f"read the log of {trial.prefill}",
        )
    else:
        missing = list(_no_connector(decode, trial))
        yield from missing
        if trial.gave_ticket:
            explained = bool(missing or differences)
            yield from _of_way(decode, trial, explained=explained, missing=bool(missing))
    yield from differences


def _sides_differ(prefill: EngineFacts, decode: EngineFacts, trial: TrialFacts) -> Iterator[CheckFinding]:
    found: list[tuple[Mistake, str, str, str]] = []
    if prefill.models and decode.models and not set(prefill.models) & set(decode.models):
        theirs = f"{prefill.models[0]} and {decode.models[0]}"
        found.append((Mistake.MODEL_DIFFERS, "serve different models", theirs, "the same model"))
    elif _unlike(prefill.loaded_from, decode.loaded_from):
        theirs = f"{prefill.loaded_from} and {decode.loaded_from}"
        found.append(
            (Mistake.MODEL_DIFFERS, "serve different models under one name", theirs, "the same model")
        )
    if _unlike(prefill.block_tokens, decode.block_tokens):
        said = "have blocks of different size"
        theirs = f"{prefill.block_tokens} and {decode.block_tokens} tokens"
        found.append((Mistake.BLOCK_SIZE_DIFFERS, said, theirs, "the same --block-size"))
    types = {prefill.cache_dtype, decode.cache_dtype}
    if _unlike(prefill.cache_dtype, decode.cache_dtype) and not ("auto" in types and types <= _OF_THE_MODEL):
        said, theirs = "keep KV in different types", f"{prefill.cache_dtype} and {decode.cache_dtype}"
        same = "the same --kv-cache-dtype (levers.kv_dtype)"
        found.append((Mistake.CACHE_DTYPE_DIFFERS, said, theirs, same))
    for mistake, said, theirs, same in found:
        words = f"{trial.prefill} and {trial.decode} {said} ({theirs})"
        yield CheckFinding(mistake, trial.pair, words, f"start both with {same}")


def _unlike(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _no_connector(decode: EngineFacts, trial: TrialFacts) -> Iterator[CheckFinding]:
    flag = "start it with --kv-transfer-config, which `phasewise up` writes for pools of this role"
    if not trial.gave_ticket and trial.prefill_problem is None:
        words = f"{trial.prefill} computes prompts but keeps no KV for other engines: it has no connector"
        yield CheckFinding(Mistake.NO_CONNECTOR_PREFILL, trial.prefill, words, flag)
    if decode.has_connector is False:
        words = (
            f"{trial.decode} has no connector: it accepts requests with KV to fetch, reports nothing, "
            "and computes every prompt a second time"
        )
        yield CheckFinding(Mistake.NO_CONNECTOR_DECODE, trial.decode, words, flag)


def _of_way(
    decode: EngineFacts, trial: TrialFacts, *, missing: bool, explained: bool
) -> Iterator[CheckFinding]:
    """What went wrong between two engines; a bare rejection is reported only if nothing else explains it."""
    if trial.decode_problem is None:
        if not missing:
            yield _answered_unproven(trial)
        if trial.side_channel in _OUT_OF_REACH and decode.has_connector:
            yield _no_side_channel(trial)
    elif trial.side_channel in _OUT_OF_REACH:
        yield _no_side_channel(trial)
    elif trial.decode_timed_out:
        yield CheckFinding(
            Mistake.TRANSFER_HANGS,
            trial.pair,
            f"{trial.decode} did not get the KV of {trial.prefill} in time: {trial.decode_problem}",
            f"check that {trial.prefill} runs, and that data ports between the two are open (UCX_TLS)",
        )
    elif not explained:
        yield CheckFinding(
            Mistake.HANDSHAKE_REJECTED,
            trial.pair,
            f"{trial.decode} reached {trial.side_address} but did not take the KV ({trial.decode_problem}): "
            f"either another engine than {trial.prefill} answers there, or the two differ in model, dtype, "
            "attention backend or vLLM version",
            f"give every engine a VLLM_NIXL_SIDE_CHANNEL_PORT of its own; the log of {trial.decode} says "
            "which (engine ID or compatibility hash mismatch)",
        )


def _no_side_channel(trial: TrialFacts) -> CheckFinding:
    reported = f"{trial.prefill} gives {trial.side_address} as the address of its KV"
    if trial.side_channel is SideChannel.SILENT:
        return CheckFinding(
            Mistake.SIDE_CHANNEL_BLOCKED,
            trial.pair,
            f"{reported}, where nothing answers within seconds: the port is blocked, or {trial.decode} "
            "cannot reach the host",
            "open the port between the two, or set VLLM_NIXL_SIDE_CHANNEL_HOST to an address that decode "
            "engines reach",
        )
    who = "another server than its side channel listens"
    if trial.side_channel is SideChannel.NOBODY:
        who = "nobody listens"
    return CheckFinding(
        Mistake.SIDE_CHANNEL_WRONG,
        trial.pair,
        f"{reported}, where {who}",
        f"set VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT of {trial.prefill} to where it "
        "listens, a port of its own",
    )


def _out_of_reach(trial: TrialFacts) -> CheckFinding:
    return CheckFinding(
        Mistake.SIDE_CHANNEL_OUT_OF_REACH,
        trial.pair,
        f"{trial.decode} fetches the KV of {trial.prefill} over a connection that is already open, but its "
        f"side channel at {trial.side_address} cannot be reached from here ({trial.side_channel}): a decode "
        "engine that is restarted or added may not reach it",
        f"try that address from where {trial.decode} runs; if it cannot be reached there either, correct "
        f"VLLM_NIXL_SIDE_CHANNEL_HOST and VLLM_NIXL_SIDE_CHANNEL_PORT of {trial.prefill} or open the port",
    )


def _answered_unproven(trial: TrialFacts) -> CheckFinding:
    computed = trial.computed_tokens
    if trial.proof is KvProof.HIDDEN:
        return _hidden(trial)
    if trial.proof is KvProof.UNCOUNTED:
        return CheckFinding(
            Mistake.NOT_PROVEN,
            trial.pair,
            f"{trial.decode} answered, but does not report where its prompts' KV came from",
            "start it without --disable-log-stats, and use a vLLM that counts prompt_tokens_by_source_total",
        )
    seen = f"{trial.moved_tokens or 0:g} of {trial.prompt_tokens} prompt tokens came from {trial.prefill}"
    again = "" if computed is None else f", and it computed {computed:g} itself"
    return CheckFinding(
        Mistake.SILENT_FALL_BACK,
        trial.pair,
        f"{trial.decode} answered without an error, but {seen}{again}: the prompt is computed twice",
        'set "kv_load_failure_policy":"fail" in its --kv-transfer-config to make failures visible, '
        f"and read its log for why the KV of {trial.prefill} was not loaded",
    )


def _hidden(trial: TrialFacts) -> CheckFinding:
    words = (
        f"other requests hide whether {trial.decode} fetched the prompt's {trial.prompt_tokens} tokens: it "
        f"fetched {trial.moved_tokens or 0:g} during the trial, and computed {trial.computed_tokens or 0:g}"
    )
    if trial.first_token_s is not None and trial.computing_s is not None:
        words += (
            f"; its first token took {duration(trial.first_token_s)}, and the whole prompt had taken "
            f"{trial.prefill} {duration(trial.computing_s)}"
        )
    fix = f"check again while {trial.decode} computes fewer prompts of its own"
    return CheckFinding(Mistake.NOT_PROVEN, trial.pair, words, fix)


def _of_failure_policies(engines: Iterable[EngineFacts]) -> Iterator[CheckFinding]:
    for engine in engines:
        if engine.recomputes_on_failure:
            yield CheckFinding(
                Mistake.FALL_BACK_ALLOWED,
                engine.name,
                f"{engine.name} silently recomputes a prompt when its KV cannot be fetched",
                'set "kv_load_failure_policy":"fail" in its --kv-transfer-config: the gateway then decides',
            )


# --- What a check found, for programs.


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The facts, what is wrong with them, and how long the check took. `ran` is false if nothing runs yet."""

    ran: bool
    facts: FleetFacts
    findings: tuple[CheckFinding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there are no findings but warnings."""
        return all(finding.is_warning for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain types."""
        return {
            "ok": self.ok,
            "running": self.ran,
            "seconds": round(self.seconds, 3),
            "engines": [asdict(engine) for engine in self.facts.engines],
            "pairs": [
                {**asdict(trial), "proven": trial.proven, "bytes_per_s": trial.bytes_per_s}
                for trial in self.facts.trials
            ],
            "findings": [{**asdict(finding), "warning": finding.is_warning} for finding in self.findings],
        }

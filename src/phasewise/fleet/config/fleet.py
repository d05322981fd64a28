"""The fleet file: pools of engines, their levers, and the gateway in front of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from phasewise.core.worker import Role
from phasewise.fleet.config.gateway import ByteSize, Frozen, GatewayConfig, Name, Port

DEMO_MODEL = "smollm2-135m"
VLLM: Final = "vllm"
LLAMA_CPP: Final = "llama.cpp"
LLAMA_CPP_LEVERS = ("prefix_cache", "max_num_batched_tokens", "max_num_seqs", "max_model_len")


class Speculation(Frozen):
    """Guess tokens ahead and verify them in one step."""

    method: Literal["ngram"] = "ngram"
    tokens: Annotated[int, Field(ge=1, le=32)] = 5
    lookup_max: Annotated[int, Field(ge=1, le=32)] = 4


class Levers(Frozen):
    """The engine's levers under phasewise's names; a missing one keeps the engine's default."""

    # prefill
    prefix_cache: bool | None = None
    max_num_batched_tokens: Annotated[int, Field(ge=16)] | None = None
    # decode
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    speculation: Speculation | None = None
    # the KV cache between them
    kv_cache_memory_bytes: ByteSize | None = None
    kv_dtype: Literal["auto", "bfloat16", "fp8"] | None = None
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    # both phases
    weight_quantization: str | None = None
    attention_backend: str | None = None


class Pool(Frozen):
    """Identical engines."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"cores": {"type": "integer"}, "gpus": {"type": "integer"}},
                "required": ["cores", "gpus"],
            },
            "if": {"properties": {"engine": {"const": LLAMA_CPP}}, "required": ["engine"]},
            "then": {
                "properties": {
                    "role": {"const": Role.MIXED.value},
                    "gpus": {"type": "null"},
                    "levers": {
                        "properties": {
                            name: {"type": "null"}
                            for name in Levers.model_fields
                            if name not in LLAMA_CPP_LEVERS
                        }
                    },
                }
            },
        }
    )

    name: Name = "main"
    engine: Literal["vllm", "llama.cpp"] = VLLM
    role: Role = Role.MIXED
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    cores: Annotated[int, Field(ge=1)] | None = None
    gpus: Annotated[int, Field(ge=1)] | None = None
    slots: Annotated[int, Field(ge=1)] | None = None
    levers: Levers = Levers()
    engine_flags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_kind_of_device(self) -> Pool:
        if self.cores is not None and self.gpus is not None:
            raise ValueError("a pool runs on cores or on gpus, not on both")
        return self

    @model_validator(mode="after")
    def _what_llama_cpp_takes(self) -> Pool:
        if self.engine != LLAMA_CPP:
            return self
        if self.role is not Role.MIXED:
            raise ValueError(f"role is '{self.role}', but llama.cpp cannot transfer KV: its role is mixed")
        if self.gpus is not None:
            raise ValueError("phasewise starts llama.cpp on cores only: write cores instead of gpus")
        others = [name for name, value in self.levers if value is not None and name not in LLAMA_CPP_LEVERS]
        if others:
            raise ValueError(
                f"llama.cpp has no lever {', '.join(others)}; it has {', '.join(LLAMA_CPP_LEVERS)}"
            )
        return self


class FleetConfig(Frozen):
    """A fleet file. With `engine_keys` only the gateway can use its engines."""

    version: Literal[1] = 1
    name: Name = "local"
    model: str = DEMO_MODEL
    first_engine_port: Port = 8100
    engine_keys: bool = True
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)] = (Pool(),)
    gateway: GatewayConfig = GatewayConfig()

    @model_validator(mode="after")
    def _distinct_pools(self) -> FleetConfig:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError("pool names must be unique")
        return self

    def has(self, engine: str) -> bool:
        """Whether some pool has this kind of engine."""
        return any(pool.engine == engine for pool in self.pools)


# --- A pool's own engine flags, read as the engine does: a later one wins, dashes equal underscores.


class Flag(NamedTuple):
    """A flag's value, and the flag's position in the list."""

    value: str
    position: int


def find_flag(flags: Sequence[str], *names: str) -> Flag | None:
    """The last of the flags with one of these names, written `--name value` or `--name=value`."""
    found = None
    for position, word in enumerate(flags):
        name, joined, value = word.partition("=")
        if with_dashes(name) in names:
            found = Flag(value if joined else next(iter(flags[position + 1 : position + 2]), ""), position)
    return found


def with_dashes(name: str) -> str:
    """A flag's name in its usual form."""
    return name.replace("_", "-") if name.startswith("--") else name


def json_object(value: str) -> dict[str, Any] | None:
    """A flag's value as a JSON object (None: it is something else)."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None

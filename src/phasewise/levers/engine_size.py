"""What every engine of a run is given: cores or GPUs, KV memory, a context. One size, or results would mix.

Who gets which core is fleet/placement.py's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from phasewise.config import Levers, byte_size
from phasewise.costs.config_keys import optional_count
from phasewise.errors import ConfigError
from phasewise.fleet.model_config_file import read_model_config
from phasewise.fleet.placement import Machine

LONGEST_UNASKED_TOKENS = 8192
"""All traffic here fits, and a request this long fits the 1 GiB of KV memory of an engine on a CPU."""


class EngineSize(BaseModel):
    """The same for every engine; None leaves it to the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cores: int | None = None
    gpus: int | None = None
    kv_memory: str | None = None
    context_tokens: int | None = None

    def given_to(self, levers: Levers) -> Levers:
        """An engine's levers with the memory and the context, where it does not set them itself."""
        sizes = {"kv_memory": self.kv_memory, "max_context_tokens": self.context_tokens}
        unset = {name: size for name, size in sizes.items() if getattr(levers, name) is None}
        return levers.model_copy(update=unset)


def size_here(asked: EngineSize, machine: Machine, own_context_tokens: int | None) -> EngineSize:
    """What was asked for, if the machine has it; what was not, as small as it has to be."""
    on_cpu = machine.device == "cpu"
    if (asked.gpus if on_cpu else asked.cores) is not None:
        wrong, right = ("--gpus", "--cores") if on_cpu else ("--cores", "--gpus")
        raise ConfigError(
            f"{wrong} is given, but the engine is built for {machine.device}", hint=f"use {right} instead"
        )
    count, there = (asked.cores, machine.cores) if on_cpu else (asked.gpus, machine.gpus)
    if count is not None and count > len(there):
        what = "cores" if on_cpu else "GPUs"
        raise ConfigError(
            f"{count} {what} are asked for, and this machine has {len(there)}", hint=f"ask for fewer {what}"
        )
    if asked.kv_memory is not None:
        byte_size(asked.kv_memory)
    capped = None if own_context_tokens is None else min(own_context_tokens, LONGEST_UNASKED_TOKENS)
    return asked.model_copy(
        update={
            "cores" if on_cpu else "gpus": count or 1,
            "context_tokens": asked.context_tokens or capped,
        }
    )


def own_context_tokens(model: str, home: Path, environ: Mapping[str, str]) -> int | None:
    """The longest context that a model's configuration names; None where it is not on this machine."""
    try:
        config = read_model_config(model, home, environ)
        inner = config.get("text_config")
        return optional_count(inner if isinstance(inner, dict) else config, "max_position_embeddings")
    except ConfigError:
        return None

"""Prompts that somebody wrote, as the traffic of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from phasewise.benchmark.workload.lengths import Lengths
from phasewise.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Written:
    """Prompts to be sent as they are, however long that is, and how much is to be answered.

    `about` says in a few words what is asked. Only outputs have a length that can be chosen.
    """

    about: str
    prompts: tuple[str, ...] = field(repr=False)
    output_tokens: int | Lengths

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ConfigError("a workload without prompts", hint="write at least one, and none that is empty")

    @property
    def output(self) -> Lengths:
        """How long outputs are, whichever way it was said."""
        tokens = self.output_tokens
        return tokens if isinstance(tokens, Lengths) else Lengths.fixed(tokens)

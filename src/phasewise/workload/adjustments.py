"""What was changed of a plan between what was asked for and what is sent, so that a report can say it.

Only nouns: the plan cuts to a context, the tokenizer's answers are sought elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.workload.presets import Shape


@dataclass(frozen=True, slots=True)
class ContextCut:
    """A shape that did not fit a context as it was asked for."""

    asked: Shape
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How first prompts came out that were held against the engine's own tokenizer.

    The first `counted` threads of the plan were. Of those, `off` could not be made as long as planned, by
    `most_off_tokens` at most: they are planned as long as they are.
    """

    counted: int
    off: int = 0
    most_off_tokens: int = 0

"""Reads an engine's log lines: how far its start has come, and why it failed.

It knows vLLM's wording and nothing else; finding and following the file is the supervisor's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from phasewise.fleet.fleet_state import Stage

QUOTED_CHARACTERS = 300

# In the order in which they come; a line of an earlier stage never takes a later one back.
_STAGE_MARKS: tuple[tuple[str, Stage], ...] = (
    ("Starting to load model", Stage.LOADING),
    ("Loading safetensors checkpoint", Stage.LOADING),
    ("Loading weights took", Stage.WARMING_UP),
    ("Model loading took", Stage.WARMING_UP),
    ("init engine (profile", Stage.WARMING_UP),
)
_STAGE_ORDER = (Stage.STARTING, Stage.LOADING, Stage.WARMING_UP)

_LOG_PREFIX = re.compile(
    r"^(\(\w+( pid=\d+)?\) )?((ERROR|WARNING|INFO|CRITICAL) [\d-]+ [\d:]+ )?(\[[\w.]+:\d+\] ?)?"
)
_ARGUMENT_ERROR = re.compile(
    r"\berror: (unrecognized arguments?|argument |the following arguments|ambiguous)"
)
_NAMED_ERROR = re.compile(r"^\s*([A-Za-z_][\w.]*(Error|Exception|Interrupt|NotFound))\b(: .+)?$")
_PYDANTIC_REASON = re.compile(r"^\s*(Value error|Assertion failed), .+")
# vLLM repeats a failure at every process boundary; these lines only say that there was one.
_SECOND_HAND = (
    "Engine core initialization failed",
    "EngineCore failed to start",
    "EngineDeadError",
    "SystemExit",
)


def stage_after(line: str, stage: Stage) -> Stage:
    """The stage of a starting engine once this line was logged."""
    for mark, named in _STAGE_MARKS:
        if mark in line and stage in _STAGE_ORDER:
            return max(stage, named, key=_STAGE_ORDER.index)
    return stage


def refuses_command(lines: Sequence[str]) -> bool:
    """Whether the process ended because its command line is wrong."""
    return any(_ARGUMENT_ERROR.search(line) for line in lines)


def telling_line(lines: Sequence[str]) -> str | None:
    """The line of a failed start that says most about its cause, without the logger's prefix."""
    bare = [_LOG_PREFIX.sub("", line).rstrip() for line in lines]
    first_hand = [line for line in bare if not any(phrase in line for phrase in _SECOND_HAND)]
    for pattern in (_ARGUMENT_ERROR, _PYDANTIC_REASON, _NAMED_ERROR):
        for line in reversed(first_hand):
            if pattern.search(line):
                return line.strip()[:QUOTED_CHARACTERS]
    said = [line for line in bare if line.strip()]
    return said[-1].strip()[:QUOTED_CHARACTERS] if said else None

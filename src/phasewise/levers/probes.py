"""What an engine is asked when its answers are compared, so that the lever in question has work to do.

Short questions one at a time find nothing in a prefix cache, share no step, are never cut into chunks and
give nothing to copy: equal answers to them would say nothing. Reading the answers is accuracy.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from phasewise.levers.held_out_text import OPENING, PROMPTS
from phasewise.workload.written import COPYING

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Probe:
    """Prompts, each after the same `opening`, of which `at_once` are asked at the same time."""

    prompts: tuple[str, ...]
    opening: str = ""
    at_once: int = 1

    async def ask(self, answer: Callable[[str], Awaitable[_T]]) -> tuple[_T, ...]:
        """Every prompt's answer, in order; the first failure ends all."""
        places = asyncio.Semaphore(self.at_once)

        async def asked(prompt: str) -> _T:
            async with places:
                return await answer(f"{self.opening}{prompt}")

        tasks = [asyncio.create_task(asked(prompt)) for prompt in self.prompts]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def probe_of(lever: str, prompts: int) -> Probe:
    """So many prompts that the lever acts on."""
    asked = PROMPTS[:prompts]
    match lever:
        case "speculation":
            return Probe(COPYING.prompts[:prompts])
        case "prefix_cache" | "prefill_chunk_tokens":
            return Probe(asked, opening=OPENING)
        case "continuous_batching" | "max_running":
            return Probe(asked, at_once=len(asked))
        case _:
            return Probe(asked)

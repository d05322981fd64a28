"""Which worker has which beginnings of prompts in its cache, as far as the gateway can tell.

Written by request_flow only. What the hashes are made of is model/prefix_hashes.py's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from phasewise.model.worker import WorkerRef

MOST_BLOCKS = 1_000_000
"""Over all workers: some 70 MB, and 110 million tokens of prompts."""
NEWS_SHARE = 0.125
"""How much of a worker's trust its latest report makes: eight wrong ones in a row take two thirds of it."""
DISAPPOINTING = 0.5
"""A worker that holds less than this much of what is expected, lately and now, has dropped things, and oldest
ones first. One report alone says nothing of other prompts."""
ENGINE_BLOCK_TOKENS = 128
"""Engines cache whole blocks, seldom larger ones than this: the end of what they read may be in none."""


class _Memory:
    """What one incarnation of a worker has been seen to compute: lately, and before that.

    Two sets, of which the older is dropped whole when the younger is full, forget by age as well as a list in
    order of use would, at a fifth of its cost.
    """

    __slots__ = ("older", "trust", "worker", "younger")

    def __init__(self, worker: WorkerRef) -> None:
        self.worker = worker
        self.younger: set[int] = set()
        self.older: set[int] = set()
        self.trust = 1.0

    def __len__(self) -> int:
        return len(self.younger) + len(self.older)

    def depth(self, hashes: Sequence[int]) -> int:
        """How many of the first hashes it knows.

        Prompts are remembered and forgotten from their beginning on, so that who knows a hash knows all
        before it, and looking into the middle tells on which side to look on.
        """
        younger, older = self.younger, self.older
        return bisect_right(hashes, False, key=lambda block: block not in younger and block not in older)

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt is expected to be there."""
        return int(self.trust * _tokens(self.depth(hashes), hashes, prompt_tokens))

    def grow_older(self) -> None:
        """Drop what is old, and call old what was young."""
        self.older, self.younger = self.younger, set()

    def judge(self, met: float) -> None:
        """Learn how much of what was expected was there."""
        self.trust += NEWS_SHARE * (min(1.0, met) - self.trust)
        if met < DISAPPOINTING and self.trust < DISAPPOINTING:
            self.grow_older()


class PrefixIndex:
    """Remembers who served what, and how far that memory was right."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._memories: dict[str, _Memory] = {}

    def served(
        self,
        worker: WorkerRef,
        hashes: Sequence[int],
        prompt_tokens: int,
        cached_tokens: int,
        held_blocks: int = 0,
    ) -> None:
        """A worker has computed this prompt and reported how much of it was cached.

        `held_blocks` is what it was taken to hold when it was given the request: what others had it compute
        meanwhile is not held against it, nor is the last block of what it held. With 0 its report is not
        judged, and the prompt only remembered.
        """
        memory = self._memory(worker)
        if memory is None:
            memory = self._begin(worker)
        sure_tokens = _tokens(held_blocks, hashes, prompt_tokens) - ENGINE_BLOCK_TOKENS
        if sure_tokens > 0:
            memory.judge(cached_tokens / sure_tokens)
        room = self._set_room
        if len(memory.younger) + len(hashes) > room:
            memory.grow_older()
        memory.younger.update(hashes[:room])

    def held_blocks(self, worker: WorkerRef, hashes: Sequence[int]) -> int:
        """How many of a prompt's first blocks the worker is taken to hold."""
        memory = self._memory(worker)
        return 0 if memory is None else memory.depth(hashes)

    def cached_tokens(self, worker: WorkerRef, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How much of a prompt is expected to be in the worker's cache.

        What it is taken to hold, by as much as it held of what it was taken to hold before.
        """
        memory = self._memory(worker)
        return 0 if memory is None else memory.cached_tokens(hashes, prompt_tokens)

    def cached_on(self, hashes: Sequence[int], prompt_tokens: int) -> dict[WorkerRef, int]:
        """The same, of all workers of which anything is expected."""
        if not hashes:
            return {}
        first = hashes[0]
        return {
            memory.worker: memory.cached_tokens(hashes, prompt_tokens)
            for memory in self._memories.values()
            if first in memory.younger or first in memory.older
        }

    def known_blocks(self, worker: WorkerRef) -> int:
        """How much is remembered of the worker: new conversations go where that is least."""
        memory = self._memory(worker)
        return 0 if memory is None else len(memory)

    def check_invariants(self) -> None:
        """Nothing grows without end, and trust is a share."""
        known = sum(map(len, self._memories.values()))
        if known > self._most_blocks:
            raise AssertionError(f"{known} blocks are remembered, and {self._most_blocks} are the most")
        if bad := [memory.trust for memory in self._memories.values() if not 0 <= memory.trust <= 1]:
            raise AssertionError(f"trust is a share, and no {bad}")

    def _memory(self, worker: WorkerRef) -> _Memory | None:
        """What is known of this incarnation."""
        memory = self._memories.get(worker.name)
        return memory if memory is not None and memory.worker == worker else None

    def _begin(self, worker: WorkerRef) -> _Memory:
        """Forget the incarnation before, or make room for one worker more."""
        memory = self._memories[worker.name] = _Memory(worker)
        for other in self._memories.values():
            while max(len(other.younger), len(other.older)) > self._set_room:
                other.grow_older()
        return memory

    @property
    def _set_room(self) -> int:
        """How large each of a worker's two sets may be: all workers have the same share."""
        return self._most_blocks // (2 * len(self._memories))


def _tokens(blocks: int, hashes: Sequence[int], prompt_tokens: int) -> float:
    """So many of a prompt's blocks in tokens. Half a block stands for the end that fills none."""
    return prompt_tokens * blocks / (len(hashes) + 0.5)

"""Which prompt prefixes each worker is expected to hold in its cache.

Only request_flow writes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from phasewise.core.worker import WorkerRef

MOST_BLOCKS = 1_000_000
"""The most blocks known over all workers: some 70 MB, and 110 million tokens of prompts."""
NEWS_SHARE = 0.125
"""The weight of a worker's latest report in its trust: eight wrong reports in a row take two thirds of it."""
DISAPPOINTING = 0.5
"""A worker that holds less than this share of what is expected, recently and now, has evicted blocks, the
oldest first. One report alone says nothing about other prompts."""
ENGINE_BLOCK_TOKENS = 128
"""Engines cache whole blocks, rarely larger than this. The end of a prompt may fill no block."""


class _Memory:
    """The blocks that one incarnation of a worker has computed: recently, and before that.

    When the younger set is full, the older one is dropped whole. That forgets by age as well as an LRU list
    does, at a fifth of its cost.
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
        """How many of the first hashes are known.

        A known hash implies that all before it are known. Most workers know all of a prompt or hardly any of
        it, so the end of what is known is looked for at growing distances first.
        """
        younger, older, end = self.younger, self.older, len(hashes)
        step = 1
        while step < end and ((block := hashes[step - 1]) in younger or block in older):
            step *= 2
        return bisect_right(
            hashes,
            False,
            step // 2,
            min(step, end),
            key=lambda block: block not in younger and block not in older,
        )

    def cached_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How many tokens of a prompt are expected in the cache."""
        return int(self.trust * _tokens(self.depth(hashes), hashes, prompt_tokens))

    def grow_older(self) -> None:
        """Drop the older set; the younger one takes its place."""
        self.older, self.younger = self.younger, set()

    def judge(self, met: float) -> None:
        """Learn which share of the expected tokens was cached."""
        self.trust += NEWS_SHARE * (min(1.0, met) - self.trust)
        if met < DISAPPOINTING and self.trust < DISAPPOINTING:
            self.grow_older()


class PrefixIndex:
    """Keeps which worker computed which prefixes, and how reliable that knowledge is."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self.is_shared = False  # whether other gateways report what was computed for them
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

        `held_blocks` were expected in its cache when it got the request; its report is judged by them, minus
        the last block. With 0 the report is not judged and the prompt is only remembered.
        """
        memory = self._memory(worker)
        if memory is None:
            memory = self._begin(worker)
        sure_tokens = _tokens(held_blocks, hashes, prompt_tokens) - ENGINE_BLOCK_TOKENS
        if sure_tokens > 0:
            memory.judge(cached_tokens / sure_tokens)
        capacity = self._set_capacity
        if len(memory.younger) + len(hashes) > capacity:
            memory.grow_older()
        memory.younger.update(hashes[:capacity])

    def held_blocks(self, worker: WorkerRef, hashes: Sequence[int]) -> int:
        """How many of a prompt's first blocks the worker is expected to hold."""
        memory = self._memory(worker)
        return 0 if memory is None else memory.depth(hashes)

    def cached_tokens(self, worker: WorkerRef, hashes: Sequence[int], prompt_tokens: int) -> int:
        """How many tokens of a prompt are expected in the worker's cache: known blocks, scaled by trust."""
        memory = self._memory(worker)
        return 0 if memory is None else memory.cached_tokens(hashes, prompt_tokens)

    def cached_on(self, hashes: Sequence[int], prompt_tokens: int) -> dict[WorkerRef, int]:
        """`cached_tokens` of every worker that is expected to hold any."""
        if not hashes:
            return {}
        first, second = hashes[0], hashes[1] if len(hashes) > 1 else None
        one_block = _tokens(1, hashes, prompt_tokens)
        found = {}
        for memory in self._memories.values():
            younger, older = memory.younger, memory.older
            if first in younger or first in older:
                # Many know no more than a system prompt that all have in common.
                if second in younger or second in older:
                    found[memory.worker] = memory.cached_tokens(hashes, prompt_tokens)
                else:
                    found[memory.worker] = int(memory.trust * one_block)
        return found

    def known_blocks(self, worker: WorkerRef) -> int:
        """How many blocks are known of the worker. New conversations go where this is smallest."""
        memory = self._memory(worker)
        return 0 if memory is None else len(memory)

    def forget(self, name: str) -> None:
        """The worker is gone; the others get its share."""
        self._memories.pop(name, None)

    def export(self) -> dict[str, list[Any]]:
        """What is known, in plain types, for the process that follows."""
        return {
            name: [memory.worker.incarnation, memory.trust, list(memory.younger), list(memory.older)]
            for name, memory in self._memories.items()
        }

    def adopt(self, known: Mapping[str, Sequence[Any]]) -> None:
        """What another gateway or process knew, in addition to what is known here."""
        for name, (incarnation, trust, younger, older) in known.items():
            worker = WorkerRef(name, incarnation)
            memory = self._memory(worker)
            if memory is None:
                memory = self._begin(worker)
                memory.trust = trust
            for blocks in (older, younger):
                if len(memory.younger) + len(blocks) > self._set_capacity:
                    memory.grow_older()
                memory.younger.update(blocks[: self._set_capacity])

    def check_invariants(self) -> None:
        """The index is within its bound, and trust is a share."""
        known = sum(map(len, self._memories.values()))
        if known > self._most_blocks:
            raise AssertionError(f"{known} blocks are known; the bound is {self._most_blocks}")
        if bad := [memory.trust for memory in self._memories.values() if not 0 <= memory.trust <= 1]:
            raise AssertionError(f"trust is not between 0 and 1: {bad}")

    def _memory(self, worker: WorkerRef) -> _Memory | None:
        """The memory of this incarnation."""
        memory = self._memories.get(worker.name)
        return memory if memory is not None and memory.worker == worker else None

    def _begin(self, worker: WorkerRef) -> _Memory:
        """Forget the former incarnation, or shrink the others' sets for one more worker."""
        memory = self._memories[worker.name] = _Memory(worker)
        for other in self._memories.values():
            while max(len(other.younger), len(other.older)) > self._set_capacity:
                other.grow_older()
        return memory

    @property
    def _set_capacity(self) -> int:
        """The capacity of each of a worker's two sets; all workers have the same share."""
        return self._most_blocks // (2 * len(self._memories))


def _tokens(blocks: int, hashes: Sequence[int], prompt_tokens: int) -> float:
    """The tokens in so many of a prompt's blocks. Half a block stands for the end that fills none."""
    return prompt_tokens * blocks / (len(hashes) + 0.5)

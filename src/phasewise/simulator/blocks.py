"""The KV cache as numbered blocks: their reference counts, the prefix in each, and the order of eviction."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BlockHash = bytes


def root_hash(cache_salt: str) -> BlockHash:
    """What the first block's hash is chained to: prompts with different salts share no blocks."""
    return blake2b(cache_salt.encode(), digest_size=16).digest()


def chain_hash(parent: BlockHash, ids: Sequence[int]) -> BlockHash:
    """The hash of a full block: of its tokens and, through its parent, of all tokens before it."""
    return blake2b(parent + struct.pack(f">{len(ids)}Q", *ids), digest_size=16).digest()


class BlockPool:
    """Blocks with reference counts; a free block keeps its prefix until it is taken again."""

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self._refs = [0] * total_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total_blocks))
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks without a holder, with or without a prefix."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks that are held."""
        return 1.0 - len(self._free) / self.total_blocks

    def cached_prefix(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The blocks of the longest prefix that is cached."""
        found: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def can_take(self, cached: Sequence[int], fresh: int) -> bool:
        """Whether these cached blocks and so many fresh ones can be held together."""
        revived = sum(1 for block in cached if self._refs[block] == 0)
        return revived + fresh <= len(self._free)

    def hold(self, cached: Iterable[int]) -> None:
        """Hold blocks that are cached already."""
        for block in cached:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def take(self, count: int) -> list[int]:
        """Hold fresh blocks; the least recently used prefixes are evicted for them."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self.forget(block)
            self._refs[block] = 1
        return taken

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """Make this block findable by its prefix, unless another block is found by it already."""
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def forget(self, block: int) -> None:
        """Remove the block's prefix."""
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]

    def release(self, blocks: Sequence[int]) -> None:
        """Release a sequence's blocks; its last ones are evicted first, as the fewest requests share them."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None

    def check_invariants(self, held: Iterable[int]) -> None:
        """Raise if the counts disagree with the blocks that sequences hold (one entry per hold)."""
        counted = [0] * self.total_blocks
        for block in held:
            counted[block] += 1
        if counted != self._refs:
            raise AssertionError("reference counts differ from what sequences hold")
        if set(self._free) != {block for block, refs in enumerate(self._refs) if refs == 0}:
            raise AssertionError("the free list differs from the blocks without a holder")
        if {block: block_hash for block_hash, block in self._block_of.items()} != self._hash_of:
            raise AssertionError("the two sides of the prefix index differ")

"""The KV cache as blocks: numbered, with the prefix in each, or only counted."""

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


# --- A KV cache by counting: which prefixes are held or cached, and the order in which they are evicted.
#
# Blocks have no numbers. A block with a prefix is known by that prefix's key, all others are counted.

Block = int | None
"""The key of a block that can be found by its prefix, 0 or more; None for one that cannot."""


class CountedBlocks:
    """Blocks of which free ones keep their prefix until they are taken again, the longest free ones first."""

    __slots__ = ("_free", "_held", "_next_plain", "free_blocks", "total_blocks")

    def __init__(self, total_blocks: int) -> None:
        self.total_blocks = total_blocks
        self.free_blocks = total_blocks
        self._held: dict[int, int] = {}
        # In the order of eviction: a prefix, or under a negative number so many blocks without one.
        self._free: OrderedDict[int, int] = OrderedDict({-1: total_blocks})
        self._next_plain = -2

    def cached_prefix(self, keys: Sequence[int], most: int) -> int:
        """How many of the first keys are cached."""
        held, free = self._held, self._free
        for index in range(min(most, len(keys))):
            if (key := keys[index]) not in held and key not in free:
                return index
        return min(most, len(keys))

    def can_take(self, cached: Iterable[int], fresh: int) -> bool:
        """Whether these cached blocks and so many fresh ones can be held together."""
        if fresh > self.free_blocks:
            return False
        return fresh + sum(key not in self._held for key in cached) <= self.free_blocks

    def hold(self, cached: Iterable[int]) -> None:
        """Hold blocks that are cached already."""
        held = self._held
        for key in cached:
            if key in held:
                held[key] += 1
            else:
                del self._free[key]
                self.free_blocks -= 1
                held[key] = 1

    def take(self, count: int) -> None:
        """Hold fresh blocks; the prefixes that have been free for longest are evicted for them."""
        self.free_blocks -= count
        free = self._free
        while count > 0:
            key, blocks = free.popitem(last=False)
            count -= blocks
            if count < 0:
                free[key] = -count
                free.move_to_end(key, last=False)

    def publish(self, key: int) -> Block:
        """Make a held block findable by its prefix, unless another block is found by it already."""
        if key in self._held or key in self._free:
            return None
        self._held[key] = 1
        return key

    def forget(self, block: Block) -> None:
        """A held block that nobody shares loses its prefix."""
        if block is not None:
            del self._held[block]

    def release(self, blocks: Sequence[Block]) -> None:
        """Release a sequence's blocks; its last ones are evicted first, as the fewest requests share them."""
        held, free, plain = self._held, self._free, 0
        for block in reversed(blocks):
            if block is None:
                plain += 1
                continue
            if plain:
                self._release_plain(plain)
                plain = 0
            if held[block] > 1:
                held[block] -= 1
            else:
                del held[block]
                free[block] = 1
                self.free_blocks += 1
        if plain:
            self._release_plain(plain)

    def _release_plain(self, blocks: int) -> None:
        self._free[self._next_plain] = blocks
        self._next_plain -= 1
        self.free_blocks += blocks

    def check_invariants(self, holders: Iterable[Sequence[Block]]) -> None:
        """Raise if the counts disagree with the blocks that sequences hold."""
        held: dict[int, int] = {}
        plain = 0
        for blocks in holders:
            for block in blocks:
                if block is None:
                    plain += 1
                else:
                    held[block] = held.get(block, 0) + 1
        if held != self._held:
            raise AssertionError("prefixes are held that no sequence holds, or the other way round")
        if self.free_blocks != sum(self._free.values()):
            raise AssertionError("the number of free blocks differs from the free list")
        if self.free_blocks + len(held) + plain != self.total_blocks:
            raise AssertionError("blocks were lost or doubled")

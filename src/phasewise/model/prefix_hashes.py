"""Hashes that tell equal beginnings of prompts, block after block, without telling the prompts.

Each hash covers its block and all before it, so that two prompts have as many hashes in common as they have
blocks. What bytes stand for a prompt is gateway/prefix_hashing.py's, who holds which blocks
state/prefix_index.py's.
"""

from __future__ import annotations

from hashlib import blake2b

BLOCK_BYTES = 512
"""Some 110 tokens of English: about one block of engines with large blocks, several of others."""
HASHED_BYTES = 256 * 1024
"""Longer prompts are known by their beginning: some 55 thousand tokens tell any two of them apart."""

_HASH_BYTES = 8


def prefix_hashes(root: bytes, prompt: bytes, key: bytes) -> tuple[int, ...]:
    """One hash for each whole block of the prompt; none are equal under two roots or two keys.

    `root` is what keeps equal words apart: a model, a tenant. Without the key, which has at most 64 bytes,
    nobody can make a prompt that is taken for another's.
    """
    whole_bytes = min(len(prompt), HASHED_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    if not whole_bytes:
        return ()
    # The root's length before it: no other root and prompt can be read as the same bytes.
    chain = blake2b(b"%d:%b" % (len(root), root), key=key, digest_size=_HASH_BYTES)
    hashes: list[int] = []
    for start in range(0, whole_bytes, BLOCK_BYTES):
        chain.update(prompt[start : start + BLOCK_BYTES])
        hashes.append(int.from_bytes(chain.copy().digest()))
    return tuple(hashes)

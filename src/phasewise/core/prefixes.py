"""Hashes that identify equal prompt prefixes, block by block, without revealing the prompts.

Each hash covers its block and all before it, so two prompts share as many hashes as they share leading
blocks.
"""

from __future__ import annotations

from hashlib import blake2b

BLOCK_BYTES = 512
"""Some 110 tokens of English: about one block of engines with large blocks, several of others."""
HASHED_BYTES = 256 * 1024
"""Longer prompts are identified by their beginning: some 55 thousand tokens distinguish any two."""

_HASH_BYTES = 8


def prefix_hashes(root: bytes, prompt: bytes, key: bytes) -> tuple[int, ...]:
    """One hash for each whole block of the prompt; hashes of different roots or keys never match.

    `root` separates prompts that must not match: a model, a tenant. Without the key (at most 64 bytes),
    an attacker cannot build a prompt that collides with another tenant's.
    """
    whole_bytes = min(len(prompt), HASHED_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    if not whole_bytes:
        return ()
    # The root's length comes first, so that no other root and prompt give the same bytes.
    chain = blake2b(b"%d:%b" % (len(root), root), key=key, digest_size=_HASH_BYTES)
    hashes: list[int] = []
    for start in range(0, whole_bytes, BLOCK_BYTES):
        chain.update(prompt[start : start + BLOCK_BYTES])
        hashes.append(int.from_bytes(chain.copy().digest()))
    return tuple(hashes)


# --- Marks that identify shared prompt text without revealing it: of the prompt's beginning, and of any part.
#
# A mark is a keyed hash: equal marks mean equal bytes. The key never leaves the process that made it, so
# text cannot be recovered from a mark by guessing.

MARK_SIZES_BYTES = tuple(round(512 * 1.25**step) for step in range(26))
"""From half a KiB to 132 KiB, each a quarter larger: they give a shared prefix's length to within a fifth."""

TEXT_MARKS = 16
"""How many marks are kept of a text of any length: they distinguish a half from a quarter, in 210 bytes."""
TEXT_FROM_BYTES = 1024
"""Shorter prompts have too few pieces for a sketch, and cost an engine little to prefill again."""
TEXT_LIMIT_BYTES = 32 * 1024
SHORTEST_PIECE_BYTES = 24
"""Shorter pieces are common phrases, which unrelated texts share."""
LONGEST_PIECE_BYTES = 256
"""Longer pieces have no usable sentence end: word lists, logs, scripts with other full stops."""

_MARK_BYTES = 5
_SENTENCE_ENDS = bytes.maketrans(b".!?", b"\n\n\n")
# Letters that are rare in prose, about one in twelve words; \x82 is a byte of the Chinese and Japanese
# full stop and one continuation byte in 64 of other scripts.
_RARE_BYTES = bytes.maketrans(b"jqvxzJQVXZ7\x82", b"\n" * 12)


def prefix_marks(prompt: bytes, key: bytes) -> tuple[str, ...]:
    """One mark for each size that the prompt reaches."""
    digest = blake2b(key=key, digest_size=_MARK_BYTES)
    marks: list[str] = []
    done = 0
    for size in MARK_SIZES_BYTES:
        if len(prompt) < size:
            break
        digest.update(prompt[done:size])
        marks.append(digest.copy().hexdigest())
        done = size
    return tuple(marks)


def text_marks(prompt: bytes, key: bytes) -> tuple[str, ...]:
    """A sketch of the prompt's text: the smallest marks of its pieces, in order.

    Pieces are cut at features of the text, never at an offset: the same text behind another beginning (a
    date, an id) gives the same pieces. Two texts share about the same fraction of their marks as of their
    pieces. A full sketch says nothing about marks larger than its last.
    """
    if len(prompt) < TEXT_FROM_BYTES:
        return ()
    # Prefixing the piece with the key is a valid keyed BLAKE2 and needs no extra block.
    marks = [
        blake2b(key + piece, digest_size=_MARK_BYTES).digest() for piece in _pieces(prompt[:TEXT_LIMIT_BYTES])
    ]
    marks.sort()
    return tuple([mark.hex() for mark in marks[:TEXT_MARKS]])


def _pieces(text: bytes) -> set[bytes]:
    # Translating and splitting run in C: a regular expression takes three times as long.
    pieces: set[bytes] = set()
    for sentence in text.translate(_SENTENCE_ENDS).split(b"\n"):
        size = len(sentence)
        if size > LONGEST_PIECE_BYTES:
            runs = sentence.translate(_RARE_BYTES).split(b"\n")
            pieces.update([run for run in runs if len(run) >= SHORTEST_PIECE_BYTES])
        elif size >= SHORTEST_PIECE_BYTES:
            pieces.add(sentence)
    return pieces

"""Marks that tell shared prompts without telling the prompt: on its beginning, and on its text.

A mark is a keyed hash: equal marks mean equal bytes. The key never leaves the process that made it, so a mark
cannot be guessed back into text. What shared text means for an engine's cache is left to diagnosis.
"""

from __future__ import annotations

from hashlib import blake2b

MARK_SIZES_BYTES = tuple(round(512 * 1.25**step) for step in range(26))
"""From half a KiB to 132 KiB, each a quarter more: a shared beginning is told to within a fifth of it."""

TEXT_MARKS = 16
"""So many marks are kept of a text, however long: they tell a half from a quarter, in 210 bytes of record."""
TEXT_FROM_BYTES = 1024
"""Shorter prompts have too few pieces for a sketch, and an engine reads them again at little cost."""
TEXT_LIMIT_BYTES = 32 * 1024
SHORTEST_PIECE_BYTES = 24
"""Shorter pieces are turns of phrase, which texts share that have nothing to do with each other."""
LONGEST_PIECE_BYTES = 256
"""Longer pieces hold no end of a sentence that counts: word lists, logs, scripts with other full stops."""

_MARK_BYTES = 5
_SENTENCE_ENDS = bytes.maketrans(b".!?", b"\n\n\n")
# Letters that are rare in prose, about one in twelve words; \x82 stands in the full stop of Chinese and
# Japanese and is one continuation byte in 64 of other scripts.
_RARE_BYTES = bytes.maketrans(b"jqvxzJQVXZ7\x82", b"\n" * 12)


def prefix_marks(prompt: bytes, key: bytes) -> tuple[str, ...]:
    """One mark for each size that the prompt is at least as long as."""
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

    Pieces are cut where the text itself says so, never at an offset: the same text behind another head (a
    date, an id) is cut into the same pieces. Two texts share about as large a part of their marks as of their
    pieces. A sketch that is full says nothing of marks beyond its last: there, the longer text kept none.
    """
    if len(prompt) < TEXT_FROM_BYTES:
        return ()
    # Put before the piece, the key costs no block of its own; BLAKE2 is a keyed hash that way too.
    marks = [
        blake2b(key + piece, digest_size=_MARK_BYTES).digest() for piece in _pieces(prompt[:TEXT_LIMIT_BYTES])
    ]
    marks.sort()
    return tuple([mark.hex() for mark in marks[:TEXT_MARKS]])


def _pieces(text: bytes) -> set[bytes]:
    # Translating and splitting stay within C: a regular expression takes three times as long.
    pieces: set[bytes] = set()
    for sentence in text.translate(_SENTENCE_ENDS).split(b"\n"):
        size = len(sentence)
        if size > LONGEST_PIECE_BYTES:
            runs = sentence.translate(_RARE_BYTES).split(b"\n")
            pieces.update([run for run in runs if len(run) >= SHORTEST_PIECE_BYTES])
        elif size >= SHORTEST_PIECE_BYTES:
            pieces.add(sentence)
    return pieces

"""Text to tokens and back, and the next token of any context: exact, and the same on every fake engine.

A token is either a *word* that the fake engine generates (" t3f9a", its id is 0x3f9a) or up to four bytes of
other text. Words are recognised in prompts, so generated text encodes to the tokens it came from, and another
engine can continue a stream from its text alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b

BYTES_PER_TOKEN = 4
WORD_COUNT = 1 << 16
END_ID = WORD_COUNT
"""Ends an answer; it has no text."""
_BYTES_BASE = 1 << 32
"""Ids of tokens with n plain bytes start at n x this: the id contains the length, so decoding is exact."""
ID_LIMIT = (BYTES_PER_TOKEN + 1) * _BYTES_BASE
_WORD = re.compile(rb" t([0-9a-f]{4})")


def encode(text: str) -> list[int]:
    """The text as token ids."""
    data = text.encode()
    ids: list[int] = []
    at = 0
    for match in _WORD.finditer(data):
        ids += _encode_bytes(data[at : match.start()])
        ids.append(int(match[1], 16))
        at = match.end()
    return ids + _encode_bytes(data[at:])


def _encode_bytes(data: bytes) -> list[int]:
    whole = len(data) // BYTES_PER_TOKEN
    base = BYTES_PER_TOKEN * _BYTES_BASE
    ids = [base + value for value in struct.unpack_from(f">{whole}I", data)]
    if rest := data[whole * BYTES_PER_TOKEN :]:
        ids.append(len(rest) * _BYTES_BASE + int.from_bytes(rest))
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of token ids; bytes that are not UTF-8 become replacement characters."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


def token_bytes(token_id: int) -> bytes:
    """The text of one token, which may be part of a character."""
    if token_id < WORD_COUNT:
        return b" t%04x" % token_id
    length, value = divmod(token_id, _BYTES_BASE)
    return value.to_bytes(BYTES_PER_TOKEN)[-length:] if length else b""


class ContextHash:
    """The hash of everything a sequence holds so far, extended as it grows.

    The next token is drawn from it, so one lost or doubled token changes every token after it.
    """

    __slots__ = ("_hash",)

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._hash = blake2b(digest_size=8)
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Add further tokens."""
        self._hash.update(struct.pack(f">{len(ids)}Q", *ids))

    def next_word(self) -> int:
        """The next word."""
        return int.from_bytes(self._hash.digest()[:2])

    def ends_here(self, mean_output_tokens: int) -> bool:
        """Whether an answer ends at this point, as one in `mean_output_tokens` contexts does."""
        return int.from_bytes(self._hash.digest()[2:]) % mean_output_tokens == 0

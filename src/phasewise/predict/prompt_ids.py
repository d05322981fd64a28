"""Invents token ids for prompts that nobody kept, such that prompts which shared a beginning share one again.

Marks tell at fixed sizes whether two prompts began alike. What they share beyond the last common mark is not
known: it ends somewhere before the next one. Where the engine told how much it found cached, that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from phasewise.model.prefix_marks import MARK_SIZES_BYTES
from phasewise.predict.traffic import RecordedRequest

PromptIds = tuple[int, ...]
_RUN_LENGTH_BITS = 24
"""Ids of one piece of text follow each other; pieces begin so far apart that none reaches the next."""
_UNMARKED = ""


@dataclass(frozen=True, slots=True)
class InventedPrompt:
    """A prompt's ids. The first `shared_tokens` of them are a text that ends after the mark `shared_mark`."""

    ids: PromptIds
    shared_mark: str
    shared_tokens: int


def invent_prompts(requests: Sequence[RecordedRequest], beyond_marks: float) -> tuple[InventedPrompt, ...]:
    """Ids for every prompt.

    `beyond_marks`, from 0 to 1, says how far towards the next mark prompts go on alike after the last mark
    that they have in common.
    """
    return _Inventor(requests, beyond_marks).prompts()


def cached_beforehand(
    requests: Sequence[RecordedRequest], prompts: Sequence[InventedPrompt]
) -> tuple[PromptIds, ...]:
    """Beginnings that came from an engine's cache though none of these requests had put them there."""
    held: dict[str, int] = {}
    missing: list[PromptIds] = []
    for request, prompt in zip(requests, prompts, strict=True):
        if request.cached_tokens > held.get(prompt.shared_mark, 0):
            missing.append(prompt.ids[: request.cached_tokens])
        held[prompt.shared_mark] = max(held.get(prompt.shared_mark, 0), prompt.shared_tokens)
    return tuple(missing)


class _Inventor:
    def __init__(self, requests: Sequence[RecordedRequest], beyond_marks: float) -> None:
        self._requests = requests
        self._beyond_marks = beyond_marks
        counts = Counter(mark for request in requests for mark in request.marks)
        self._common = [tuple(mark for mark in each.marks if counts[mark] > 1) for each in requests]
        # Bytes are taken for tokens by the ratio of whoever came first: a shared text has one length.
        self._ends: dict[str, int] = {}
        self._found: dict[str, int] = {}
        for request, common in zip(requests, self._common, strict=True):
            for size, mark in zip(MARK_SIZES_BYTES, common, strict=False):
                self._ends.setdefault(mark, round(request.prompt_tokens * size / request.prompt_bytes))
            if common:
                self._found[common[-1]] = max(self._found.get(common[-1], 0), request.cached_tokens)

    def prompts(self) -> tuple[InventedPrompt, ...]:
        return tuple(
            self._prompt(request, common)
            for request, common in zip(self._requests, self._common, strict=True)
        )

    def _prompt(self, request: RecordedRequest, common: tuple[str, ...]) -> InventedPrompt:
        tokens = request.prompt_tokens
        ids: list[int] = []
        for mark in common:
            ids += _text(mark, min(self._ends[mark], tokens) - len(ids))
        shared_mark = common[-1] if common else _UNMARKED
        ids += _text(f"after {shared_mark}", min(self._shared_end(request, common), tokens) - len(ids))
        shared_tokens = len(ids)
        ids += _text(f"of {request.request_id}", tokens - len(ids))
        return InventedPrompt(tuple(ids), shared_mark, shared_tokens)

    def _shared_end(self, request: RecordedRequest, common: tuple[str, ...]) -> int:
        """Where a prompt ceases to be like others, in tokens."""
        if not common:
            return request.cached_tokens
        if found := self._found[common[-1]]:
            return found
        known, count = self._ends[common[-1]], len(common)
        next_bytes = MARK_SIZES_BYTES[count] if count < len(MARK_SIZES_BYTES) else request.prompt_bytes
        limit = request.prompt_tokens * min(next_bytes / request.prompt_bytes, 1.0)
        return known + int(self._beyond_marks * max(limit - known, 0.0))


def _text(name: str, tokens: int) -> Iterable[int]:
    begins_at = int.from_bytes(blake2b(name.encode(), digest_size=5).digest()) << _RUN_LENGTH_BITS
    return range(begins_at, begins_at + max(tokens, 0))

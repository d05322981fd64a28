"""Vectors of texts from the gateway's own embedder, one text at a time as the gateway has them made."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phasewise.clients.embedders import OnnxEmbedder

Matrix = NDArray[np.float32]
TOLD_EVERY_S = 15.0
_DIGEST_BYTES = 16


class Vectors:
    """Embeds each text once. With a file to keep them in, once for ever."""

    def __init__(self, model: Path, kept: Path | None = None) -> None:
        self._model = model
        self._kept = kept
        self._known: dict[bytes, bytes] = {}
        self.space = OnnxEmbedder(model).space
        if kept is not None and kept.exists():
            self._read(kept)

    def of(self, texts: Sequence[str]) -> Matrix:
        """One row per text."""
        missing = [text for text in dict.fromkeys(texts) if self._digest(text) not in self._known]
        if missing:
            asyncio.run(self._embed(missing))
        return np.stack([np.frombuffer(self._known[self._digest(text)], "<f4") for text in texts])

    async def _embed(self, texts: Iterable[str]) -> None:
        embedder = OnnxEmbedder(self._model)
        reported_s, texts = time.monotonic(), list(texts)
        try:
            await embedder.start()
            for count, text in enumerate(texts):
                self._keep(self._digest(text), await embedder.embed(text))
                if time.monotonic() - reported_s > TOLD_EVERY_S:
                    reported_s = time.monotonic()
                    print(f"  embedded {count:,} of {len(texts):,} texts", file=sys.stderr, flush=True)
        finally:
            await embedder.close()

    def _keep(self, digest: bytes, vector: bytes) -> None:
        self._known[digest] = vector
        if self._kept is not None:
            with self._kept.open("ab") as file:
                file.write(digest + len(vector).to_bytes(4, "little") + vector)

    def _read(self, kept: Path) -> None:
        stored, place = kept.read_bytes(), 0
        while place + _DIGEST_BYTES + 4 <= len(stored):
            start = place + _DIGEST_BYTES + 4
            length = int.from_bytes(stored[start - 4 : start], "little")
            if start + length > len(stored):
                break
            self._known[stored[place : place + _DIGEST_BYTES]] = stored[start : start + length]
            place = start + length

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(f"{self.space} {text}".encode(), digest_size=_DIGEST_BYTES).digest()

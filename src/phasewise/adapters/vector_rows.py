"""Vectors under their keys, compared with another all at once and exactly.

Which answers they belong to, and how many may be kept, is process_answers.py's.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from phasewise.model.caching import Vector

ROOM_PER_VECTOR = 1.5
"""Rows that there are, for each that is used, at most."""
_DTYPE = np.dtype("<f4")


class VectorRows:
    """The rows of one matrix, without gaps: the last takes the place of one that goes.

    It knows which key was not used for longest.
    """

    def __init__(self, dimensions: int) -> None:
        self._matrix = np.empty((0, dimensions), _DTYPE)
        self._keys: list[str] = []
        self._rows: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def least_recently_used(self) -> str:
        """Of all keys, the one to go first."""
        return next(iter(self._rows))

    def add(self, key: str, vector: Vector) -> None:
        """Take in the vector of a key that is not there."""
        self._resize(len(self._keys) + 1)
        self._matrix[len(self._keys)] = np.frombuffer(vector, _DTYPE)
        self._rows[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: str) -> None:
        """Let a key's vector go."""
        row = self._rows.pop(key)
        last = self._keys.pop()
        if last != key:
            self._matrix[row] = self._matrix[len(self._keys)]
            self._rows[last] = row
            self._keys[row] = last
        self._resize(len(self._keys))

    def use(self, key: str) -> None:
        """Say that a key was used just now."""
        self._rows.move_to_end(key)

    def nearest(self, vector: Vector, count: int) -> list[tuple[str, float]]:
        """The keys of the nearest and their cosines, nearest first."""
        similarities = self._matrix[: len(self._keys)] @ np.frombuffer(vector, _DTYPE)
        chosen = np.arange(len(similarities))
        if count < len(similarities):
            chosen = np.argpartition(similarities, -count)[-count:]
        ordered = chosen[np.argsort(-similarities[chosen], kind="stable")]
        return [(self._keys[row], float(similarities[row])) for row in ordered]

    def check_invariants(self) -> None:
        """Every key has the row that is its own, there are no others, and little room is unused."""
        if {key: row for row, key in enumerate(self._keys)} != dict(self._rows):
            raise AssertionError(f"{len(self._keys)} keys and {len(self._rows)} rows have come apart")
        if not len(self._keys) <= len(self._matrix) <= len(self._keys) * ROOM_PER_VECTOR:
            raise AssertionError(f"{len(self._matrix)} rows for {len(self._keys)} keys")

    def _resize(self, rows: int) -> None:
        """Make room for a quarter more than is wanted, when it is too little or too much: few copies."""
        if not rows <= len(self._matrix) <= rows * ROOM_PER_VECTOR:
            matrix = np.empty((rows + rows // 4, self._matrix.shape[1]), _DTYPE)
            kept = min(len(self._keys), rows)
            matrix[:kept] = self._matrix[:kept]
            self._matrix = matrix

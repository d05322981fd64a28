"""What embedders have in common: a vector as it is kept and compared, and a name for its space."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phasewise.errors import EmbedderUnreachable
from phasewise.model.caching import Vector

BYTES_PER_NUMBER = 4


def unit_vector(values: NDArray[np.floating[Any]]) -> Vector:
    """The direction of a vector; EmbedderUnreachable if it has none."""
    wide = values.astype(np.float64)
    # By its largest number first: the squares of what a float32 can hold may be too large or too small.
    largest = float(np.abs(wide).max(initial=0.0))
    if not np.isfinite(largest) or largest == 0.0:
        raise EmbedderUnreachable("the embedding model gave a vector without direction")
    wide /= largest
    return (wide / np.linalg.norm(wide)).astype("<f4").tobytes()


def space_name(model: str, digest: str) -> str:
    """A model's name in letters, digits and hyphens, and the beginning of a digest that tells it apart."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", model).strip("-") or "model"
    return f"{readable}-{digest[:8]}"

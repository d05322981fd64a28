"""Random numbers by name: everything of a plan follows from its seed, each thing from a stream of its own."""

from __future__ import annotations

from random import Random


def stream(seed: int, *names: object) -> Random:
    """The numbers that belong to a name; how many are drawn under one does not change another's."""
    return Random(" ".join(map(str, (seed, *names))))  # noqa: S311 - a workload to be repeated, no secret

"""What joins the parts of a question: "a or b" is not "a and b", and "if" is not "because"."""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, either_alone, once

_JOINTS = {
    "or": "or", "if": "if", "unless": "unless", "because": "because", "although": "although",
    "though": "although", "despite": "although", "while": "while", "whilst": "while", "either": "or",
    "than": "than", "rather": "rather", "besides": "besides", "so": "so",
}  # fmt: skip


def connectives_differ(one: Reading, other: Reading) -> str | None:
    """The conjunctions that only one of two questions has."""
    return either_alone(_joints(one), _joints(other))


@once
def _joints(reading: Reading) -> frozenset[str]:
    return frozenset(_JOINTS[lower] for lower in reading.lower_set if lower in _JOINTS)

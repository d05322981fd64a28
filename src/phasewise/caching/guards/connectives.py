"""What joins the parts of a question: "a or b" is not "a and b", and "if" is not "because"."""

from __future__ import annotations

from phasewise.caching.guards.reading import Reading, either_alone

_JOINTS = {
    "or": "or", "if": "if", "unless": "unless", "because": "because", "although": "although",
    "though": "although", "despite": "although", "while": "while", "whilst": "while", "either": "or",
    "than": "than", "rather": "rather", "besides": "besides", "so": "so",
}  # fmt: skip


def connectives_differ(one: Reading, other: Reading) -> str | None:
    """The conjunctions that only one of two questions has."""
    ours = frozenset(_JOINTS[lower] for lower in one.lower_set if lower in _JOINTS)
    theirs = frozenset(_JOINTS[lower] for lower in other.lower_set if lower in _JOINTS)
    return either_alone(ours, theirs)

"""Questions on matters far apart, each in two wordings that differ in small words alone."""

from __future__ import annotations

PAIRS = (
    ("How do I reset my router to factory settings?", "How can I reset my router to factory settings?"),
    ("What is the best way to store fresh basil?", "What's the best way to store fresh basil?"),
    ("How do I train for a first marathon?", "How can I train for a first marathon?"),
    ("Why does bread dough need to rest?", "Why does a bread dough need to rest?"),
    ("How do I renew a passport that has expired?", "How can I renew a passport that has expired?"),
    ("What is the purpose of a heat pump?", "What's the purpose of a heat pump?"),
    ("How do I remove red wine from a carpet?", "How can I remove red wine from a carpet?"),
    ("How do I tune a violin by ear?", "How can I tune a violin by ear?"),
    ("What is a sensible pressure for gravel tyres?", "What's a sensible pressure for gravel tyres?"),
    ("How do I merge two branches in git?", "How can I merge two branches in git?"),
    ("Why do cats knead blankets?", "Why do the cats knead blankets?"),
    ("How do I read a balance sheet?", "How can I read a balance sheet?"),
    ("What is the plot of Moby Dick?", "What's the plot of Moby Dick?"),
    ("How do I prune an old apple tree?", "How can I prune an old apple tree?"),
    ("How do I stop a tap from dripping?", "How can I stop a tap from dripping?"),
    ("What is the meaning of a red sky at dusk?", "What's the meaning of a red sky at dusk?"),
)  # fmt: skip
"""(what was asked first, and is stored; what is asked then)"""

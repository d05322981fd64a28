"""Finds words that the project gave up for the field's, in src, docs and whatever else is given.

    python tools/words.py [PATH ...]

Prints every hit with what to say instead. The words, and where they are still fine, are in words.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
WORDS = [(re.compile(each["pattern"]), each["say"], each.get("allowed", ())) for each in TABLE["words"]]
AROUND = 24
"""How many characters on both sides of a hit may make it fine."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Hit:
    """A word that was given up, and what to say instead."""

    where: str
    line: int
    word: str
    say: str


def hits_in(text: str, where: str) -> Iterator[Hit]:
    """Every hit in a text; identifiers are read as the words they are made of."""
    for number, line in enumerate(text.splitlines(), 1):
        plain = _CAMEL.sub(" ", line).replace("_", " ").lower()
        for pattern, say, allowed in WORDS:
            for found in pattern.finditer(plain):
                around = plain[max(0, found.start() - AROUND) : found.end() + AROUND]
                if not any(phrase in around for phrase in allowed):
                    yield Hit(where, number, found.group(), say)


def hits_under(root: Path, *folders: str) -> Iterator[Hit]:
    """Every hit in the Python files, pages and fleet files of some folders or files."""
    for folder in folders:
        start = root / folder
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            name = path.relative_to(root).as_posix()
            if path.suffix in {".py", ".md", ".yaml"} and not name.startswith(tuple(TABLE["exempt"])):
                yield from hits_in(path.read_text(encoding="utf-8"), name)


if __name__ == "__main__":
    found = list(hits_under(ROOT, *(sys.argv[1:] or TABLE["where"])))
    for hit in found:
        print(f"{hit.where}:{hit.line}: {hit.word!r}: say {hit.say}")
    sys.exit(f"{len(found)} words to replace" if found else 0)

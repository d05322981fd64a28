"""Where configuration came from: the file's name, and the line on which each of its parts stands.

What is wrong there is for reading.py to say; of the file's content nothing is kept but places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import yaml

Place = tuple[int | str, ...]
"""The way to a part of a file: keys and positions, as in ("pools", 1, "levers")."""


@dataclass(frozen=True)
class Problem:
    """Something that cannot stay as it is, and where it stands."""

    place: Place
    words: str


class Source:
    """Something that configuration is read from; without text its parts have no lines."""

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self._text = text

    def line_of(self, place: Place) -> int | None:
        """The line of the part, or of what would hold it if it were there."""
        for length in range(len(place), 0, -1):
            line = self._lines.get(tuple(map(str, place[:length])))
            if line is not None:
                return line
        return None

    def at(self, place: Place) -> str:
        """How an error begins that is about this part."""
        line = self.line_of(place)
        return self.name if line is None else f"{self.name} line {line}"

    def beside(self, place: Place) -> str:
        """How an error calls a second part: by its line, or by its keys where nothing has lines."""
        line = self.line_of(place)
        return ".".join(map(str, place)) if line is None else f"line {line}"

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        root = yaml.compose(self._text, Loader=yaml.SafeLoader)
        return {} if root is None else dict(_places(root, (), set()))


def _places(node: yaml.Node, place: tuple[str, ...], seen: set[int]) -> Iterator[tuple[tuple[str, ...], int]]:
    # What an anchor stands for may hold itself, or the same part a million times: each is looked into once.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            yield inner, key.start_mark.line + 1
            yield from _places(value, inner, seen)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            inner = (*place, str(position))
            yield inner, item.start_mark.line + 1
            yield from _places(item, inner, seen)

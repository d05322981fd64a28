"""The source of a configuration: the file's name, and the line of each of its parts. It keeps no values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import yaml
from yaml.composer import Composer

Loader: type[yaml.SafeLoader | yaml.CSafeLoader] = yaml.SafeLoader
"""What parses YAML: libyaml where it is installed, which is ten times as fast."""
if yaml.__with_libyaml__:

    class _FastLoader(Composer, yaml.CSafeLoader):
        """Parses with libyaml. Python composes the nodes, which lets other threads run."""

        def __init__(self, text: str | bytes) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)

    Loader = _FastLoader

Place = tuple[int | str, ...]
"""The path to a part of a file: keys and positions, as in ("pools", 1, "levers")."""


@dataclass(frozen=True)
class Problem:
    """A mistake, and where it is."""

    place: Place
    words: str


class ConfigSource:
    """A source of configuration; without text its parts have no lines."""

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self._text = text

    def line_of(self, place: Place) -> int | None:
        """The line of the part, or of its parent if it is missing."""
        for length in range(len(place), 0, -1):
            line = self._lines.get(tuple(map(str, place[:length])))
            if line is not None:
                return line
        return None

    def at(self, place: Place) -> str:
        """The start of an error message about this part."""
        line = self.line_of(place)
        return self.name if line is None else f"{self.name} line {line}"

    def beside(self, place: Place) -> str:
        """How an error message names a second part: by its line, or by its keys if there are no lines."""
        line = self.line_of(place)
        return ".".join(map(str, place)) if line is None else f"line {line}"

    @cached_property
    def _lines(self) -> dict[tuple[str, ...], int]:
        root = yaml.compose(self._text, Loader=Loader)
        return {} if root is None else dict(_places(root, (), set()))


def _places(node: yaml.Node, place: tuple[str, ...], seen: set[int]) -> Iterator[tuple[tuple[str, ...], int]]:
    # An anchor may contain itself, or the same part a million times: each node is visited once.
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

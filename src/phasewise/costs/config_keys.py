"""Reads single numbers out of a configuration, and names the key when one is missing or odd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phasewise.errors import ConfigError


def count_of(config: Mapping[str, Any], *keys: str) -> int:
    """The whole number under the first key that is there."""
    for key in keys:
        if (found := optional_count(config, key)) is not None:
            return found
    raise ConfigError(
        f"the configuration lacks {' or '.join(keys)}",
        hint="transformers may fill it with a default of its own: add the key with its value to the file",
    )


def optional_count(config: Mapping[str, Any], key: str) -> int | None:
    """A whole number above 0, or None where the key is missing or null."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} is {value!r}", hint="a whole number above 0 is needed there")
    return value

"""Reads a key that another server asks for from its file."""

from __future__ import annotations

from pathlib import Path

from phasewise.core.errors import ConfigError


def read_key(path: Path, whose: str) -> str:
    """The key in a file; `whose` begins the error if there is none, as in `the embedding server's key`."""
    try:
        key = path.expanduser().read_bytes().strip()
    except OSError as error:
        # A relative path may be the key itself.
        which = str(path) if path.is_absolute() else "named by api_key_file"
        raise ConfigError(
            f"{whose} {which} cannot be read ({error.strerror})",
            hint="give the full path of a file that the gateway's user can read",
        ) from None
    if not key or not key.isascii() or any(byte <= 32 for byte in key):
        raise ConfigError(f"{whose} file must hold one key and nothing else")
    return key.decode()


def key_or_its_file(given: str | None) -> str | None:
    """A key as a user gives it; `@FILE` is read, because others can see a process's arguments."""
    if given is None or not given.startswith("@"):
        return given
    return read_key(Path(given[1:]).absolute(), "the key")

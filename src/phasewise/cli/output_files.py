"""Files that a command writes at its end: whether it may is found out before it begins."""

from __future__ import annotations

from pathlib import Path

from phasewise.errors import ConfigError


def refuse_unwritable(option: str, path: Path | None) -> None:
    """ConfigError where a file that was asked for could not be written; it is not touched."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written ({error.strerror})", hint="give another file"
        ) from error
    if is_new:
        path.unlink()

"""The file in which a gateway records its decisions, for a replay."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from phasewise.core.errors import ConfigError

logger = logging.getLogger("phasewise.gateway")

MOST_BYTES = 1 << 30
# Only plain types: an object might hold what must not be written.
_PLAIN = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATACLASS


class DecisionFile:
    """JSON lines, at most `most_bytes`; only this user can read them. Whatever was there before is replaced.

    A file that is full or cannot be written ends with a warning; the gateway serves on.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._left_bytes = most_bytes
        try:
            # A gateway that is replaced may still write to the file before.
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ConfigError(
                f"gateway.record_decisions: {path} cannot be written ({error.strerror})",
                hint="name a file in a folder that exists and that the gateway may write to",
            ) from error
        self._file: BinaryIO | None = os.fdopen(handle, "wb", buffering=1 << 16)
        self._is_empty = True

    def write(self, event: dict[str, Any]) -> None:
        """Add an event."""
        if self._file is None:
            return
        try:
            line = orjson.dumps(event, option=_PLAIN)
            self._left_bytes -= len(line)
            if self._left_bytes >= 0:
                self._file.write(line)
                if self._is_empty:
                    # The head: a record can be replayed while it is written.
                    self._file.flush()
                    self._is_empty = False
                return
            why = "it is full"
        except (OSError, TypeError) as error:
            why = str(error)
        logger.warning("decisions are no longer recorded in %s: %s", self._path, why)
        self.close("full")

    def close(self, why: str = "stopped") -> None:
        """End the record."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.write(orjson.dumps({"event": "end", "arguments": [why]}) + b"\n")
            file.close()
        except OSError as error:
            logger.warning("the last decisions are not in %s: %s", self._path, error.strerror)

"""Questions between the processes of one gateway, so that each can answer for all of them.

Every process answers on a Unix socket in a folder that only its user can enter. A question is one line of
JSON, the answer is everything until the end; a process that does not answer in time is left out.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger("phasewise.gateway")

ANSWER_WITHIN_S = 1.0
"""A process that stands still does not keep the others from answering."""
ALL_IT_KNOWS = "state"
ALL_IT_KNOWS_WITHIN_S = 10.0
LONGEST_QUESTION = 1 << 20
_NAME = re.compile(r"process-(\d+)")

Question = Mapping[str, Any]
Answer = Callable[[Question], Awaitable[bytes]]


def ask_now(folder: Path, column: int, name: str) -> None:
    """Ask without an event loop, and wait for the answer."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_WITHIN_S)
        asking.connect(str(_path(folder, column)))
        asking.sendall(orjson.dumps({"ask": name}) + b"\n")
        while asking.recv(4096):
            pass


def _path(folder: Path, column: int) -> Path:
    return folder / f"process-{column}"


class Siblings:
    """This process's own socket, and the others'. `answers` has what can be asked, by name."""

    def __init__(self, folder: Path, column: int) -> None:
        self.column = column
        self._folder = folder
        self.answers: dict[str, Answer] = {}
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the others."""
        path = self._path(self.column)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST_QUESTION)

    async def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
            self._path(self.column).unlink(missing_ok=True)

    @property
    def columns(self) -> list[int]:
        """The columns of the others."""
        found = (_NAME.fullmatch(it.name) for it in self._folder.iterdir())
        return sorted(column for it in found if it is not None and (column := int(it[1])) != self.column)

    async def ask_all(self, name: str, **question: object) -> dict[int, bytes]:
        """The answers of all others, by their columns."""
        columns = self.columns
        answers = await asyncio.gather(*(self.ask(it, name, **question) for it in columns))
        return {column: it for column, it in zip(columns, answers, strict=True) if it is not None}

    async def ask(self, column: int, name: str, **question: object) -> bytes | None:
        """The answer of one; None if it has none."""
        within_s = ALL_IT_KNOWS_WITHIN_S if name == ALL_IT_KNOWS else ANSWER_WITHIN_S
        try:
            async with asyncio.timeout(within_s):
                reader, writer = await asyncio.open_unix_connection(self._path(column))
                try:
                    writer.write(orjson.dumps({"ask": name, **question}) + b"\n")
                    said = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return said[1:] if said[:1] == b"+" else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            question = orjson.loads(await reader.readline())
            answer = await self.answers[question["ask"]](question)
            writer.write(b"+" + answer)
            with suppress(OSError):  # whoever asked waits no longer
                await writer.drain()
        except (ValueError, KeyError):
            logger.exception("a question of another process was not answered")
        finally:
            writer.close()

    def _path(self, column: int) -> Path:
        return _path(self._folder, column)

"""This process among those of its gateway: it asks the others over HTTP, at their admin sockets.

An admin socket has the routes that the gateway's address has, and answers for its own process alone. It needs
no key: only the gateway's user can enter the folder.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phasewise.clients.http_client import HttpClient, Reply, Timeouts
from phasewise.core.errors import UpstreamError
from phasewise.gateway.processes.order import socket_file
from phasewise.scheduling import World

logger = logging.getLogger("phasewise.gateway")

ANSWER_WITHIN_S = 1.5
"""A process that stands still does not keep the others from answering."""
LEARNED_PATH = "/phasewise/v1/learned"
"""Answered at admin sockets only."""
LEARNED_VERSION = 1
LEARNED_WITHIN_S = 10.0
_SOCKET_NAME = re.compile(r"process-(\d+)")


@dataclass(frozen=True, slots=True)
class Peers:
    """Without a `folder`, this process is alone.

    `process` is unique, `number` counts the processes of the gateway from 0, `secret` is what they all know.
    """

    folder: Path | None = None
    process: int = 0
    number: int = 0
    secret: bytes | None = field(default=None, repr=False)

    @property
    def others(self) -> list[int]:
        """The other processes that serve, or finish what they have begun."""
        names = [] if self.folder is None else [path.name for path in self.folder.iterdir()]
        found = {int(name[1]) for name in map(_SOCKET_NAME.fullmatch, names) if name is not None}
        return sorted(found - {self.process})

    async def ask_all(
        self,
        method: str,
        path: str | Callable[[int], str],
        body: bytes = b"",
        within_s: float = ANSWER_WITHIN_S,
    ) -> dict[int, Reply]:
        """The answers of all others with status 200; those that do not answer in time are left out."""
        others = self.others
        paths = [path if isinstance(path, str) else path(process) for process in others]
        asked = (self.ask(*at, method, body, within_s) for at in zip(others, paths, strict=True))
        replies = zip(others, await asyncio.gather(*asked), strict=True)
        return {process: reply for process, reply in replies if reply is not None}

    async def ask(
        self,
        process: int,
        path: str,
        method: str = "GET",
        body: bytes = b"",
        within_s: float = ANSWER_WITHIN_S,
    ) -> Reply | None:
        """The answer of one; None if it has none."""
        if self.folder is None:
            return None
        timeouts = Timeouts(connect_s=within_s, head_s=within_s, idle_s=within_s)
        client = HttpClient("http://localhost", timeouts, unix_socket=socket_file(self.folder, process))
        try:
            async with asyncio.timeout(within_s):
                reply = await client.fetch(method, path, body=body)
        except (UpstreamError, TimeoutError):
            return None
        finally:
            client.close()
        return reply if reply.status == 200 else None


# --- What a process has learned of the engines, for the one that takes its place.


def export(world: World) -> bytes:
    """Prefixes, engine speeds and breakers as plain types: the reader may be of another version."""
    state = (world.prefixes.export(), world.paces.export(), world.breakers.export())
    return marshal.dumps((LEARNED_VERSION, state))


async def learn(world: World, peers: Peers, successor_of: int | None) -> None:
    """Adopt what the process before this one knows, or, if that one has died, another process."""
    for process in (successor_of,) if successor_of is not None else peers.others[:1]:
        if (reply := await peers.ask(process, LEARNED_PATH, within_s=LEARNED_WITHIN_S)) is not None:
            adopt(world, reply.body)


def adopt(world: World, exported: bytes) -> None:
    """Take over what another process of this user wrote; what another version wrote is left out."""
    try:
        version, state = marshal.loads(exported)  # noqa: S302 - a process of the same user wrote it
        if version != LEARNED_VERSION:
            return
        prefixes, paces, breakers = state
        world.prefixes.adopt(prefixes)
        world.paces.adopt(paces)
        world.breakers.adopt(breakers)
    except (ValueError, TypeError, EOFError, KeyError):
        logger.exception("what the process before knew could not be read: this one learns it again")

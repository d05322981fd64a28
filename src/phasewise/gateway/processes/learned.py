"""What a process has learned of the engines, for the one that takes its place."""

from __future__ import annotations

import logging
import marshal

from phasewise.gateway.processes.peers import Peers
from phasewise.scheduling import World

logger = logging.getLogger("phasewise.gateway")

PATH = "/phasewise/v1/learned"
"""Answered at admin sockets only."""
LEARNED_VERSION = 1
ANSWER_WITHIN_S = 10.0


def export(world: World) -> bytes:
    """Prefixes, engine speeds and breakers as plain types: the reader may be of another version."""
    state = (world.prefixes.export(), world.paces.export(), world.breakers.export())
    return marshal.dumps((LEARNED_VERSION, state))


async def learn(world: World, peers: Peers, successor_of: int | None) -> None:
    """Adopt what the process before this one knows, or, if that one has died, another process."""
    for process in (successor_of,) if successor_of is not None else peers.others[:1]:
        if (reply := await peers.ask(process, PATH, within_s=ANSWER_WITHIN_S)) is not None:
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

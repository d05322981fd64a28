"""One process among those of its gateway: what it shares with the others, and when it must end."""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from phasewise.core.worker import WorkerRef
from phasewise.fleet.config.gateway import RedisConfig
from phasewise.gateway.processes.board import Board
from phasewise.gateway.processes.neighbours import BoardNeighbours
from phasewise.gateway.processes.other_gateways import GROUP_BYTES, GatewayExchange, OtherGateways
from phasewise.gateway.processes.siblings import ALL_IT_KNOWS, Siblings
from phasewise.gateway.processes.supervisor import Place, end_turn, replace_others
from phasewise.gateway.processes.take_over import ListenerSharing
from phasewise.scheduling import World
from phasewise.scheduling.ledger import Neighbours

logger = logging.getLogger("phasewise.gateway")

STATE_VERSION = 1


class Membership:
    """The shared memory, the turns at free slots and the questions of one process."""

    def __init__(self, place: Place) -> None:
        self.number = place.number
        self.folder = place.folder
        self.board = Board(place.board_fd, place.column)
        self.neighbours = BoardNeighbours(self.board, place.folder)
        self.siblings = Siblings(place.folder, place.column)
        self._sharing = ListenerSharing(place.folder, place.column, place.board_fd, place.listeners)
        self._place = place
        self.all_neighbours: Neighbours = self.neighbours
        self.exchange: GatewayExchange | None = None

    def join_gateways(self, redis: RedisConfig, key: bytes | None) -> None:
        """Share with other gateways too; `key` is that of OtherGateways."""
        sender = blake2b(self.board.secret, digest_size=GROUP_BYTES).digest() + os.urandom(GROUP_BYTES)
        self.all_neighbours = others = OtherGateways(self.neighbours, sender, key)
        self.exchange = GatewayExchange(redis, others)

    @property
    def has_successor(self) -> bool:
        """Whether a supervisor starts another process if this one is killed."""
        return self._place.lifeline is not None

    async def start(self, world: World) -> None:
        """Join the others, and learn what those knew that this one takes over from."""
        self.siblings.answers[ALL_IT_KNOWS] = lambda _question: _state(world)
        self.neighbours.start()
        await self.siblings.start()
        self._sharing.start()
        self.neighbours.on_served = partial(_learn_prefix, world)
        # One of the others knows all that its gateway has learned of prefixes; speeds are each one's own.
        for column in self._place.before or self.board.others[:1]:
            if (state := await self.siblings.ask(column, ALL_IT_KNOWS)) is not None:
                _adopt(world, state)
        if self._place.lifeline is not None:
            asyncio.get_running_loop().add_reader(self._place.lifeline, os._exit, 1)
        if self._place.generation not in {None, self.board.generation}:
            os._exit(0)  # another gateway has taken over since this process was started

    def serves(self) -> None:
        """Say that it accepts connections."""
        if self._place.ready is not None:
            os.write(self._place.ready, b"1")
            return
        self.board.begin_generation()
        replace_others(self.board, self.folder, [self._place.column])
        end_turn(self._place.turn)

    def leave(self) -> None:
        """Another gateway takes over: nobody takes over from this one."""
        self._sharing.stop()

    async def stop(self) -> None:
        """Leave them."""
        if self._place.lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._place.lifeline)
        self._sharing.stop()
        await self.siblings.stop()
        self.neighbours.stop()


def _learn_prefix(world: World, worker: WorkerRef, hashes: Sequence[int], *more: int) -> None:
    """What another process has seen, unless this one knows another start of the engine."""
    if world.cluster.is_current(worker):
        world.prefixes.served(worker, hashes, *more)


async def _state(world: World) -> bytes:
    """What a process that takes over should know, as plain types: it may be of another version."""
    state = (world.prefixes.export(), world.paces.export(), world.breakers.export())
    return marshal.dumps((STATE_VERSION, state))


def _adopt(world: World, exported: bytes) -> None:
    try:
        version, state = marshal.loads(exported)  # noqa: S302 - a process of the same user wrote it
        if version != STATE_VERSION:
            return
        prefixes, paces, breakers = state
        world.prefixes.adopt(prefixes)
        world.paces.adopt(paces)
        world.breakers.adopt(breakers)
    except (ValueError, TypeError, EOFError, KeyError):
        logger.exception("what the gateway before knew could not be read: this one learns it again")

"""What replicas with the same Redis learn of each other: load booked on engines, prefixes computed there.

Replicas are all processes of all gateways. Messages name no address, key or prompt, and no request waits for
them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from operator import add, sub
from typing import Any
from urllib.parse import urlsplit

import orjson

from phasewise.clients.redis_connection import SharedConnection, published, redis_connections
from phasewise.core.worker import WorkerRef
from phasewise.fleet.config import LOOPBACK_HOSTS
from phasewise.fleet.config.gateway import RedisConfig
from phasewise.scheduling import World

EVERY_S = 0.02
"""A change is sent at once, and the next one after this time at the soonest."""
PER_OTHER_S = 0.0025
"""The same for each other replica that has to read it, where there are many."""
AT_LEAST_EVERY_S = 1.0
"""A replica without changes sends too: so others know that it lives, and it knows that Redis does."""
FORGOTTEN_AFTER_S = 3.0
PROMPTS_AT_ONCE = 32
MOST_UNSENT = 1_024
LONGEST_MESSAGE = 1 << 19
MOST_OTHERS = 256
MOST_TOKENS = 1 << 40
DIGEST_BYTES = 16
SENDER_BYTES = 16

Loads = dict[str, list[int]]
"""Of each engine, the fields of Load from `tokens` on."""
NO_LOAD = [0] * 4


logger = logging.getLogger("phasewise.gateway")


class OtherReplicas:
    """Implements the port Neighbours.

    `sender` identifies this replica. With `key`, which replicas with the same secret have, prefixes are
    exchanged and foreign messages ignored. `on_change` is called when there is something to send, which may
    be done each `every_s`.
    """

    def __init__(self, sender: bytes, key: bytes | None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.every_s = EVERY_S
        self._sender, self._key = sender, key
        self._engines: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self._served: deque[tuple[Any, ...]] = deque(maxlen=MOST_UNSENT)
        self._others: dict[bytes, tuple[float, Loads]] = {}
        self._sums: Loads = {}

    def booked(self) -> None:
        """Send the new load soon."""
        if self._others:
            self.on_change()

    def loads(self) -> Mapping[str, Sequence[int]]:
        """The sums of all others, by the names of this replica's workers."""
        return self._sums

    def served(self, worker: WorkerRef, hashes: Sequence[int], *counts: int) -> None:
        """Send the prompt's hashes soon, where prefixes are exchanged."""
        if self._others and self._key is not None:
            self._served.append((*worker, hashes, *counts))
            self.on_change()

    def message(self, world: World, now_s: float) -> bytes:
        """All load of this replica, and prompts that were computed since the last message.

        Others that have sent nothing for FORGOTTEN_AFTER_S are forgotten here.
        """
        others = {
            sender: heard for sender, heard in self._others.items() if now_s - heard[0] < FORGOTTEN_AFTER_S
        }
        self.every_s = max(EVERY_S, PER_OTHER_S * len(others))
        workers = (state.worker for state in world.cluster.snapshot())
        ids = {worker.name: engine_id(worker.url, self._key or b"") for worker in workers}
        if ids != self._engines or len(others) < len(self._others):
            self._engines, self._others = ids, others
            self._add_up()
        loads: Loads = {}
        for worker, load in world.ledger.loads.items():
            fields = (load.tokens, load.unread_tokens, load.streams, load.unread_requests)
            engine = ids.get(worker.name, "")
            loads[engine] = [*map(add, loads.get(engine, [0] * 4), fields)]
        prompts = (self._served.popleft() for _ in range(min(PROMPTS_AT_ONCE, len(self._served))))
        served = [(ids.get(name, ""), *prompt) for name, *prompt in prompts]
        signed = self._sender + orjson.dumps((loads, served))
        return self._digest(signed) + signed

    def hear(self, message: bytes, world: World, now_s: float) -> None:
        """Learn what a message says; one that no replica with this key wrote is ignored."""
        digest, signed = message[:DIGEST_BYTES], message[DIGEST_BYTES:]
        if len(message) > LONGEST_MESSAGE or not hmac.compare_digest(digest, self._digest(signed)):
            return
        # Even its own message shows that a replica hears all: no conversation needs a home.
        world.prefixes.is_shared = self._key is not None
        sender, names = signed[:SENDER_BYTES], self._names
        is_known = sender in self._others or len(self._others) < MOST_OTHERS
        if sender == self._sender or not is_known:
            return
        try:
            loads, served = _read(signed[SENDER_BYTES:])
        except (ValueError, TypeError, AttributeError):
            return
        before = self._others.get(sender, (now_s, {}))[1]
        self._others[sender] = now_s, {engine: load for engine, load in loads.items() if engine in names}
        self._count(before, self._others[sender][1])
        for engine, incarnation, *prompt in served if self._key is not None else ():
            if world.cluster.is_current(worker := WorkerRef(names.get(engine, [""])[-1], incarnation)):
                world.prefixes.served(worker, *prompt)

    def cut_off(self, world: World) -> None:
        """Redis does not answer: go on with what this replica knows itself."""
        self._others, world.prefixes.is_shared = {}, False
        self._add_up()

    def _add_up(self) -> None:
        """Make all sums again, after engines have changed or a sender was forgotten."""
        self._sums, self._names = {}, {}
        for name, engine in self._engines.items():
            self._names.setdefault(engine, []).append(name)
        for _, loads in self._others.values():
            self._count({}, loads)

    def _count(self, before: Loads, after: Loads) -> None:
        """Put one sender's change into the sums: to add up all senders each time takes whole cores."""
        for engine in before.keys() | after.keys():
            old, new = before.get(engine, NO_LOAD), after.get(engine, NO_LOAD)
            for name in self._names.get(engine, ()) if old != new else ():
                total = self._sums.get(name, NO_LOAD)
                self._sums[name] = total = [*map(add, total, map(sub, new, old))]
                if not any(total):
                    del self._sums[name]

    def _digest(self, signed: bytes) -> bytes:
        return blake2b(signed, key=self._key or b"", digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=4_096)
def engine_id(url: str, key: bytes) -> str:
    """Equal in all replicas that reach an engine by this address: by loopback, in those of one machine."""
    machine = socket.gethostname() if urlsplit(url).hostname in LOOPBACK_HOSTS else ""
    return blake2b(f"{machine} {url.rstrip('/')}".encode(), key=key, digest_size=8).hexdigest()


def _read(body: bytes) -> tuple[Loads, list[list[Any]]]:
    """Loads and served prompts. Raises ValueError, TypeError or AttributeError for any other form."""
    loads, served = orjson.loads(body)
    figures = [*chain.from_iterable(loads.values())]
    if {*map(len, loads.values())} - {4} or {*map(type, figures)} - {int}:
        raise ValueError
    if figures and (min(figures) < 0 or max(figures) > MOST_TOKENS):
        raise ValueError
    for engine, incarnation, hashes, *counts in served:
        kinds = [{type(engine), type(incarnation)}, set(map(type, (*hashes, *counts)))]
        if kinds != [{str}, {int}] or len(counts) != 3 or min(counts) < 0:
            raise ValueError
    return loads, served


class ReplicaExchange:
    """Sends and receives while Redis answers, and tries again while it does not."""

    def __init__(self, config: RedisConfig, others: OtherReplicas) -> None:
        self._make_connection = redis_connections(config.url, "gateway.redis")
        self._channel = f"{config.key_prefix}:gateways"
        self.others = others
        self._changed = asyncio.Event()
        others.on_change = self._changed.set
        self._reported = False

    async def run(self, world: World) -> None:
        """Exchange until cancelled."""
        while True:
            publishing = SharedConnection(self._make_connection)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._listen(world))
                    both.create_task(self._publish(world, publishing))
            except* Exception as errors:
                # Any error: Redis clients fail in many ways.
                if not self._reported:
                    why = type(errors.exceptions[0]).__name__
                    logger.warning(
                        "the load of other processes and gateways is unknown until Redis answers (%s)", why
                    )
                self._reported = True
            finally:
                self.others.cut_off(world)
                await publishing.close()
            await asyncio.sleep(AT_LEAST_EVERY_S)

    async def _listen(self, world: World) -> None:
        async for message in published(self._make_connection, self._channel, FORGOTTEN_AFTER_S):
            self._reported = False
            self.others.hear(message, world, asyncio.get_running_loop().time())

    async def _publish(self, world: World, publishing: SharedConnection) -> None:
        """One message at a time: a slow Redis gets fewer of them."""
        while True:
            self._changed.clear()
            message = self.others.message(world, asyncio.get_running_loop().time())
            async with asyncio.timeout(FORGOTTEN_AFTER_S):
                await publishing.ask("PUBLISH", self._channel, message)
            await asyncio.sleep(self.others.every_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(AT_LEAST_EVERY_S):
                    await self._changed.wait()

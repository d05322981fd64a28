"""What gateways with the same Redis learn of each other: load booked on engines, and prefixes computed there.

Messages name no address, key or prompt. No request waits for them.
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
from phasewise.scheduling.ledger import Neighbours

EVERY_S, PER_OTHER_S = 0.02, 0.0025
"""A change is sent at once, the next no sooner than this: later where many others have to read it."""
AT_LEAST_EVERY_S, FORGOTTEN_AFTER_S = 1.0, 3.0
"""Without a change a process sends too: others hear that it lives, and itself that Redis does."""
PROMPTS_AT_ONCE, MOST_UNSENT = 32, 1_024
LONGEST_MESSAGE, MOST_OTHERS, MOST_TOKENS = 1 << 19, 256, 1 << 40
DIGEST_BYTES, GROUP_BYTES, SENDER_BYTES = 16, 8, 16
"""The id of a sender begins with that of its gateway."""

Loads = dict[str, list[int]]
"""Of each engine, as in Load without requests: those of other gateways take none of this one's slots."""
NO_LOAD = [0] * 4


logger = logging.getLogger("phasewise.gateway")


class OtherGateways:
    """Implements the port Neighbours: other gateways, beside the other `processes` of this one.

    `sender` identifies this process. With `key`, which gateways with the same secret have, prefixes are
    exchanged and foreign messages ignored. `on_change` is called when there is something to send, which may
    be done each `every_s`.
    """

    def __init__(self, processes: Neighbours, sender: bytes, key: bytes | None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.every_s = EVERY_S
        self.waiting, self.give_way = processes.waiting, processes.give_way
        self._processes, self._sender, self._key = processes, sender, key
        self._engines: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self._served: deque[tuple[Any, ...]] = deque(maxlen=MOST_UNSENT)
        self._others: dict[bytes, tuple[float, Loads]] = {}
        self._sums: Loads = {}

    def booked(self, worker: str, *change: int) -> None:
        """This process's load on a worker has changed."""
        self._processes.booked(worker, *change)
        if self._others:
            self.on_change()

    def loads(self) -> Mapping[str, Sequence[int]]:
        """The loads of processes and gateways together."""
        near, far = self._processes.loads(), self._sums
        if not near or not far:
            return near or far
        return {**far, **{name: [*map(add, it, far.get(name, [0] * 5))] for name, it in near.items()}}

    def served(self, worker: WorkerRef, hashes: Sequence[int], *more: int) -> None:
        """A worker has computed a prompt."""
        self._processes.served(worker, hashes, *more)
        if self._others and self._key is not None:
            self._served.append((*worker, hashes, *more))
            self.on_change()

    def message(self, world: World, now_s: float) -> bytes:
        """All load of this process, and prompts that were computed since. Who is silent is forgotten."""
        others = {it: of for it, of in self._others.items() if now_s - of[0] < FORGOTTEN_AFTER_S}
        self.every_s = max(EVERY_S, PER_OTHER_S * len(others))
        workers = (it.worker for it in world.cluster.snapshot())
        ids = {it.name: engine_id(it.url, self._key or b"") for it in workers}
        if ids != self._engines or len(others) < len(self._others):
            self._engines, self._others = ids, others
            self._add_up()
        loads: Loads = {}
        for worker, it in world.ledger.loads.items():
            fields = (it.tokens, it.unread_tokens, it.streams, it.unread_requests)
            engine = ids.get(worker.name, "")
            loads[engine] = [*map(add, loads.get(engine, [0] * 4), fields)]
        prompts = (self._served.popleft() for _ in range(min(PROMPTS_AT_ONCE, len(self._served))))
        served = [(ids.get(name, ""), *prompt) for name, *prompt in prompts]
        signed = self._sender + orjson.dumps((loads, served))
        return self._digest(signed) + signed

    def hear(self, message: bytes, world: World, now_s: float) -> None:
        """A message came. What no such gateway wrote is ignored."""
        digest, signed = message[:DIGEST_BYTES], message[DIGEST_BYTES:]
        if len(message) > LONGEST_MESSAGE or not hmac.compare_digest(digest, self._digest(signed)):
            return
        # Even one's own message shows that all are heard: no conversation needs a home.
        world.prefixes.is_shared = self._key is not None
        sender, names = signed[:SENDER_BYTES], self._names
        is_known = sender in self._others or len(self._others) < MOST_OTHERS
        if sender[:GROUP_BYTES] == self._sender[:GROUP_BYTES] or not is_known:
            return
        try:
            loads, served = _read(signed[SENDER_BYTES:])
        except (ValueError, TypeError, AttributeError):
            return
        before = self._others.get(sender, (now_s, {}))[1]
        self._others[sender] = now_s, {engine: it for engine, it in loads.items() if engine in names}
        self._count(before, self._others[sender][1])
        for engine, incarnation, *prompt in served if self._key is not None else ():
            if world.cluster.is_current(worker := WorkerRef(names.get(engine, [""])[-1], incarnation)):
                world.prefixes.served(worker, *prompt)

    def cut_off(self, world: World) -> None:
        """Redis does not answer: go on with what this gateway knows itself."""
        self._others, world.prefixes.is_shared = {}, False
        self._add_up()

    def _add_up(self) -> None:
        """Everything: engines have changed, or somebody is forgotten."""
        self._sums, self._names = {}, {}
        for name, engine in self._engines.items():
            self._names.setdefault(engine, []).append(name)
        for _, loads in self._others.values():
            self._count({}, loads)

    def _count(self, before: Loads, after: Loads) -> None:
        """One sender's loads: to add up all senders' with each message would take whole cores."""
        for engine in before.keys() | after.keys():
            old, new = before.get(engine, NO_LOAD), after.get(engine, NO_LOAD)
            for name in self._names.get(engine, ()) if old != new else ():
                total = self._sums.get(name, [0, *NO_LOAD])
                self._sums[name] = total = [0, *map(add, total[1:], map(sub, new, old))]
                if not any(total):
                    del self._sums[name]

    def _digest(self, signed: bytes) -> bytes:
        return blake2b(signed, key=self._key or b"", digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=4_096)
def engine_id(url: str, key: bytes) -> str:
    """The same in all gateways that reach an engine by this address: by loopback, those of one machine."""
    machine = socket.gethostname() if urlsplit(url).hostname in LOOPBACK_HOSTS else ""
    return blake2b(f"{machine} {url.rstrip('/')}".encode(), key=key, digest_size=8).hexdigest()


def _read(body: bytes) -> tuple[Loads, list[list[Any]]]:
    """Raises ValueError, TypeError or AttributeError unless it has the form of a message."""
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


class GatewayExchange:
    """Sends and receives while Redis answers, and tries again while it does not."""

    def __init__(self, config: RedisConfig, others: OtherGateways) -> None:
        self._make_connection = redis_connections(config.url, "gateway.redis")
        self._channel = f"{config.key_prefix}:gateways"
        self._others = others
        self._changed = asyncio.Event()
        others.on_change = self._changed.set
        self._reported = False

    async def run(self, world: World) -> None:
        """Until cancelled."""
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
                    logger.warning("the load of other gateways is unknown until Redis answers (%s)", why)
                self._reported = True
            finally:
                self._others.cut_off(world)
                await publishing.close()
            await asyncio.sleep(AT_LEAST_EVERY_S)

    async def _listen(self, world: World) -> None:
        async for message in published(self._make_connection, self._channel, FORGOTTEN_AFTER_S):
            self._reported = False
            self._others.hear(message, world, asyncio.get_running_loop().time())

    async def _publish(self, world: World, publishing: SharedConnection) -> None:
        """One message at a time: a slow Redis gets fewer of them."""
        while True:
            self._changed.clear()
            message = self._others.message(world, asyncio.get_running_loop().time())
            async with asyncio.timeout(FORGOTTEN_AFTER_S):
                await publishing.ask("PUBLISH", self._channel, message)
            await asyncio.sleep(self._others.every_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(AT_LEAST_EVERY_S):
                    await self._changed.wait()

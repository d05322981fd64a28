"""One fake engine on one port: it can be started, killed, restarted and given faults."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from random import Random
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from phasewise.core.errors import EngineStartFailed
from phasewise.costs.fit.step import StepSeconds, StepWork
from phasewise.fake_engine.engine_loop import EngineLoop, UnixClock
from phasewise.fake_engine.faults import Fault, FaultBoard, FaultKind
from phasewise.fake_engine.jitter import Jitter, JitteredCost
from phasewise.fake_engine.metrics import EngineMetrics
from phasewise.fake_engine.server import VERSION, EngineCore, FakeEngineApp
from phasewise.fake_engine.step_log import RecentSteps
from phasewise.simulator.engine import EngineShape, StepReport, VirtualEngine
from phasewise.simulator.kv import Connector, KvLink, SideChannels
from phasewise.simulator.requests import PRESETS

DEFAULT_MODEL = "fake-model"
SIDE_CHANNELS = SideChannels()
"""Where the fake engines of this process find each other; shared, as ports are.

Engines that transfer KV to each other must run in one event loop.
"""
TURNS_TO_CLOSE = 6
"""Turns of the event loop in which a connection that was just accepted is made, aborted and closed."""
GOODBYE_S = 1.0
DATE_HEADER_S = 1.0


@dataclass(frozen=True, slots=True)
class FakeEngineConfig:
    """All settings. Port 0 means any free one; `steps_port` of None means no second port."""

    model: str = DEFAULT_MODEL
    host: str = "127.0.0.1"
    port: int = 0
    steps_port: int | None = None
    shape: EngineShape = field(default_factory=EngineShape)
    cost: StepSeconds = PRESETS["fast"]
    jitter: Jitter | None = None
    faults: tuple[Fault, ...] = ()
    kv_transfer: Connector | None = None
    """With a connector it transfers KV, as the prefill side or the decode side of any request."""

    def virtual_engine(self) -> VirtualEngine:
        """A virtual engine with this config; of the faults only slow steps affect it."""
        return VirtualEngine(self.shape, FakeEngine(self).step_seconds)


class FakeEngine:
    """A handle on one engine. `boot` names its incarnation and changes with every start."""

    def __init__(self, config: FakeEngineConfig | None = None) -> None:
        self.config = config or FakeEngineConfig()
        self.faults = FaultBoard(self.config.faults)
        self.boot = ""
        self.requests_finished = 0
        self.tokens_written = 0
        self._cost = self.config.cost
        if self.config.jitter is not None:
            rng = Random(self.config.jitter.seed)  # noqa: S311 - noise, no secret
            self._cost = JitteredCost(self._cost, self.config.jitter, rng)
        self._port = self.config.port
        self._steps_port = self.config.steps_port
        self._side_port = self.config.kv_transfer.side_port if self.config.kv_transfer is not None else 0
        self._incarnation: _Incarnation | None = None
        self._coming_back: asyncio.TimerHandle | None = None
        self._farewells: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> str:
        """The model's served name."""
        return self.config.model

    @property
    def port(self) -> int:
        """Its port, also while it is dead."""
        return self._port

    @property
    def base_url(self) -> str:
        """Its address."""
        return f"http://{self.config.host}:{self._port}"

    @property
    def steps_url(self) -> str:
        """Where /steps is: on its second port if it has one."""
        return f"http://{self.config.host}:{self._steps_port or self._port}"

    @property
    def side_port(self) -> int:
        """Where other engines ask for its KV, also while it is dead."""
        return self._side_port

    @property
    def alive(self) -> bool:
        """Whether it listens."""
        return self._incarnation is not None

    @property
    def engine(self) -> VirtualEngine:
        """The virtual engine of this incarnation, for inspection."""
        if self._incarnation is None:
            raise RuntimeError("the engine is dead")
        return self._incarnation.engine

    async def start(self) -> None:
        """Listen and step; the first start chooses the ports, later starts keep them."""
        if self._incarnation is not None:
            raise RuntimeError("the engine is running")
        main = _listen(self.config.host, self._port)
        self._port = main.getsockname()[1]
        sockets = [main]
        if self._steps_port is not None:
            sockets.append(_listen(self.config.host, self._steps_port))
            self._steps_port = sockets[-1].getsockname()[1]
        self.boot = secrets.token_hex(8)
        if self.config.kv_transfer is not None:
            self._side_port = self._side_port or SIDE_CHANNELS.free_port()
        self._incarnation = _Incarnation(self)
        await self._incarnation.listen(sockets)
        self.faults_changed()

    async def stop(self) -> None:
        """Die for good and wait until everything has ended."""
        if self._coming_back is not None:
            self._coming_back.cancel()
            self._coming_back = None
        self.die()
        while self._farewells:
            await asyncio.gather(*self._farewells)

    async def restart(self) -> None:
        """Die if alive, and start on the same port as another incarnation, with empty caches."""
        await self.stop()
        await self.start()

    def die(self, restart_after_s: float | None = None) -> None:
        """Stop listening and drop every connection immediately."""
        if self._incarnation is None:
            return
        incarnation, self._incarnation = self._incarnation, None
        incarnation.kill()
        farewell = asyncio.ensure_future(incarnation.gone())
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)
        if restart_after_s is not None:
            loop = asyncio.get_running_loop()
            self._coming_back = loop.call_later(restart_after_s, self._come_back)

    def cut(self, client: tuple[str, int]) -> None:
        """Close one client's connection after the data that was sent."""
        if self._incarnation is not None:
            self._incarnation.close_connection(client)

    def inject(self, kind: FaultKind | str, **options: object) -> None:
        """Arm a fault; the options are those of `Fault`."""
        self.faults.add(Fault(FaultKind(kind), **options))  # type: ignore[arg-type]
        self.faults_changed()

    def clear_faults(self) -> None:
        """Disarm all faults; a dead engine stays dead."""
        self.faults.clear()
        self.faults_changed()

    def faults_changed(self) -> None:
        """Apply armed faults."""
        death = self.faults.take_death()
        if death is not None:
            self.die(death.restart_after_s)
        elif self._incarnation is not None:
            self._incarnation.hang(self.faults.hung, self.faults.core_hung)

    def step_seconds(self, work: StepWork) -> float:
        """The present cost of a step."""
        return self._cost(work) * self.faults.step_factor

    def count(self, report: StepReport) -> None:
        """Count a step."""
        self.requests_finished += len(report.step.finished)
        self.tokens_written += len(report.emitted)
        if self.faults.faults:
            self.faults.count_tokens(len(report.emitted))
            self.faults_changed()

    def _come_back(self) -> None:
        self._coming_back = None
        task = asyncio.ensure_future(self.start())
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)


class _Connection(HttpToolsProtocol):
    """A connection that ends with its engine, even if it was accepted just as the engine died."""

    def __init__(self, is_dead: Callable[[], bool], **of_uvicorn: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**of_uvicorn)
        self._is_dead = is_dead

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._is_dead():
            transport.abort()


class _Incarnation:
    """What lives from one start to the next death."""

    def __init__(self, owner: FakeEngine) -> None:
        config = owner.config
        self._owner = owner
        self._clock = clock = UnixClock()
        self._metrics = EngineMetrics(config.model, config.shape)
        kv_link = self._kv_link()
        self.engine = VirtualEngine(config.shape, owner.step_seconds, kv_link)
        self._steps = RecentSteps(f"fake {VERSION}", owner.boot)
        self._loop = EngineLoop(self.engine, clock, self._record, self._note_idle)
        core = EngineCore(config.model, config.shape, clock, self._loop, self._metrics, self._steps, kv_link)
        self._app = FakeEngineApp(core, owner.faults, owner)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._dead = False
        self._stepping: asyncio.Task[None] | None = None
        self._date_timer: asyncio.TimerHandle | None = None

    async def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Serve on these sockets, with uvicorn's protocol but without its signal handlers and main loop."""
        # The application is called directly: uvicorn must not wrap it for lifespan or proxies.
        config = uvicorn.Config(
            self._app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            access_log=False,
        )
        config.load()
        loop = asyncio.get_running_loop()
        self._refresh_headers()
        for listening in sockets:
            server = await loop.create_server(
                lambda: _Connection(
                    lambda: self._dead, config=config, server_state=self._state, app_state={}
                ),
                sock=listening,
                backlog=2048,
            )
            self._servers.append(server)
        self._stepping = asyncio.create_task(self._loop.run())

    def hang(self, hung: bool, core_hung: bool) -> None:
        """Stop answering and stepping, or stepping alone, or start again."""
        self._app.hang(hung)
        self.engine.hang(hung)
        if hung or core_hung:
            self._loop.pause()
        else:
            self._loop.resume()

    def close_connection(self, client: tuple[str, int]) -> None:
        """Close the connection of one client."""
        for connection in tuple(self._connections):
            if connection.client == client:
                connection.transport.close()

    def kill(self) -> None:
        """Close everything that is open; unsent bytes are lost."""
        self._dead = True
        self.engine.close(self._clock())
        for server in self._servers:
            server.close()
        for connection in tuple(self._connections):
            connection.transport.abort()
        if self._stepping is not None:
            self._stepping.cancel()
        if self._date_timer is not None:
            self._date_timer.cancel()

    async def gone(self) -> None:
        """Wait for what ends by itself; cancel the rest."""
        pending = set(self._state.tasks)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=GOODBYE_S)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, *filter(None, [self._stepping]), return_exceptions=True)
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)

    @property
    def _connections(self) -> set[HttpToolsProtocol]:
        return cast("set[HttpToolsProtocol]", self._state.connections)

    def _record(self, report: StepReport) -> None:
        self._metrics.record(report)
        self._steps.append(report.step)
        self._owner.count(report)

    def _note_idle(self) -> None:
        engine = self.engine
        self._metrics.observe_load(engine.running, engine.waiting, engine.kv_usage, engine.deferred)
        self._steps.append_idle(self._clock(), engine.running, engine.waiting, engine.kv_usage)

    def _kv_link(self) -> KvLink | None:
        owner, config = self._owner, self._owner.config
        if config.kv_transfer is None:
            return None
        return KvLink(
            engine_id=owner.boot,
            address=(config.host, owner.side_port),
            channels=SIDE_CHANNELS,
            connector=config.kv_transfer,
            layout=(config.model, config.shape.block_size),
            troubles=owner.faults,
            observer=self._metrics.kv_transfers(),
        )

    def _refresh_headers(self) -> None:
        date = formatdate(usegmt=True).encode()
        self._state.default_headers = [(b"date", date), (b"server", b"uvicorn"), (b"vary", b"Origin")]
        self._date_timer = asyncio.get_running_loop().call_later(DATE_HEADER_S, self._refresh_headers)


def _listen(host: str, port: int) -> socket.socket:
    # asyncio turns off Nagle's algorithm only where TCP is named; with it a reply can be 40 ms late.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise EngineStartFailed(
            f"a fake engine cannot listen at {host}:{port} ({error.strerror or error})",
            hint="choose another port, or 0 for any free one",
        ) from error
    return listening

"""The gateway's driver and the picker, fed with equal requests and outcomes: do they decide alike?"""

from __future__ import annotations

import asyncio
import operator
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from phasewise.core.decision import Candidate, Decision
from phasewise.core.request import Endpoint, GenerationRequest
from phasewise.fleet.config import GatewayConfig, GatewayFile, QueueConfig, WorkerConfig
from phasewise.gateway.api.pipeline import Arrival
from phasewise.gateway.app import GatewayApp, build_app
from phasewise.gateway.parts import GatewayParts
from phasewise.gateway.picker.messages import (
    FULL_DUPLEX_STREAMED,
    ProcessingRequest,
    ResponseHead,
    read_response_head,
)
from phasewise.gateway.picker.picker import EndpointPicker, outcome_of
from phasewise.gateway.quarantine import Quarantine
from phasewise.gateway.records.timeline_builder import TimelineBuilder
from phasewise.gateway.server.client import Client, Headers
from phasewise.gateway.upstream.call import SERVED, Call, Ending, Reservation
from phasewise.gateway.upstream.driver import FlowDriver
from phasewise.gateway.upstream.exchange import Exchange, Result, Settling
from phasewise.scheduling import Generate, request_flow
from phasewise.scheduling.policies import CanTransfer
from picking.cases import CHAT, chat

WORKERS, SLOTS, WAITING = 6, 3, 8
SETTLE_TURNS = 12
"""Turns of the event loop after which everything that could go on has done so."""
RESPONSES = (200, 200, 200, 200, 200, 400, 500, 503, None)
"""Statuses of responses; 503 is Envoy's own, None a client that left."""


@dataclass(slots=True)
class Side:
    """One of the two, with what it decided."""

    parts: GatewayParts
    decided: list[object] = field(default_factory=list)

    def watch(self) -> None:
        """From now on keep every decision."""
        world = self.parts.world
        policy = world.policy

        def kept(
            request: GenerationRequest, candidates: Sequence[Candidate], can_transfer: CanTransfer
        ) -> Decision:
            decision = policy(request, candidates, can_transfer)
            loads = [(it.worker.name, *it[1:]) for it in decision.candidates]
            self.decided.append((decision.chosen.name, decision.reason, loads))
            return decision

        world.policy = kept

    def mark_all_up(self) -> None:
        """As after a health check."""
        for state in self.parts.world.cluster.snapshot():
            self.parts.world.cluster.mark_up(state.worker.name, "1")


class _Silent:
    """A client that takes everything."""

    listener = None
    paused = left = False

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Nobody reads it."""

    def keep_reading(self) -> None:
        """Nothing to notice."""


class _Scripted(Exchange):
    """Performs attempts by waiting for the status that the script gives the response."""

    def __init__(self) -> None:
        self.responses: dict[str, asyncio.Future[int | None]] = {}
        self.placed: set[str] = set()

    def generate(self, step: Generate, call: Call) -> Settling:
        """One attempt."""
        self.placed.add(call.path)
        return self._attempt(step, call)

    async def _attempt(self, step: Generate, call: Call) -> tuple[Result, Ending]:
        status = await self.responses[call.path]
        response = None if status is None else _response(status)
        if response is not None and response.status < 400 and step.on_first_content is not None:
            step.on_first_content()
        return outcome_of(call.timeline.request, response, time.monotonic()), SERVED


def _response(status: int) -> ResponseHead:
    return read_response_head(_response_message(status))


def _response_message(status: int) -> Message:
    message = ProcessingRequest()
    line = message.response_headers.headers.headers.add()
    line.key, line.raw_value = ":status", str(status).encode()
    details = (
        "upstream_reset_before_response_started{connection_termination}" if status == 503 else "via_upstream"
    )
    message.attributes["envoy.filters.http.ext_proc"].update({"response.code_details": details})
    return message


def _request_messages(body: bytes) -> list[ProcessingRequest]:
    head = ProcessingRequest()
    head.protocol_config.request_body_mode = FULL_DUPLEX_STREAMED
    for name, given in ((":method", "POST"), (":path", CHAT), ("content-length", str(len(body)))):
        line = head.request_headers.headers.headers.add()
        line.key, line.raw_value = name, given.encode()
    rest = ProcessingRequest()
    rest.request_body.body, rest.request_body.end_of_stream = body, True
    return [head, rest]


async def _messages(queue: asyncio.Queue[Message | None]) -> AsyncIterator[Message]:
    while (message := await queue.get()) is not None:
        yield message


@dataclass(slots=True)
class _Pair:
    """One request on both sides."""

    status: asyncio.Future[int | None]
    messages: asyncio.Queue[Message | None]
    tasks: tuple[asyncio.Task[None], ...]

    def respond(self, status: int | None) -> None:
        """The response has come, and has ended."""
        self.status.set_result(status)
        if status is not None:
            self.messages.put_nowait(_response_message(status))
        self.messages.put_nowait(None)


async def same_decisions(requests: int, seed: int = 7) -> tuple[int, int]:
    """How many decisions were equal, and how many were compared."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(bytes(range(48)))
        secret.chmod(0o600)
        gateway, picking = (Side(_app(secret)._parts) for _ in range(2))
    for side in (gateway, picking):
        side.mark_all_up()
        side.watch()
    exchange, picker = _Scripted(), EndpointPicker(picking.parts)
    driver = FlowDriver(exchange, gateway.parts.quotas, Quarantine(0.0, lambda _ref: False))
    pairs: dict[str, _Pair] = {}
    conversations = [f"conversation {number}: " for number in range(12)]
    begun, answered = 0, False
    while begun < requests or pairs:
        placed = [name for name in pairs if name in exchange.placed]
        if begun < requests and (not placed or rng.random() < 0.55):
            chosen = rng.randrange(len(conversations))
            conversations[chosen] += f"turn {begun} " * rng.randrange(5, 200)
            body = chat(conversations[chosen], max_tokens=rng.randrange(1, 400))
            name, status = str(begun), asyncio.get_running_loop().create_future()
            messages: asyncio.Queue[Message | None] = asyncio.Queue()
            for message in _request_messages(body):
                messages.put_nowait(message)
            exchange.responses[name] = status
            by_gateway = asyncio.create_task(_by_gateway(gateway.parts, driver, name, body))
            by_picker = asyncio.create_task(_by_picker(picker, messages))
            pairs[name] = _Pair(status, messages, (by_gateway, by_picker))
            begun += 1
        else:
            pairs[rng.choice(placed)].respond(rng.choice(RESPONSES) if answered else 200)
            answered = True  # from now on the picker knows that it sees responses
            if rng.random() < 0.1:
                gateway.mark_all_up()
                picking.mark_all_up()
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        for name in [name for name, it in pairs.items() if any(task.done() for task in it.tasks)]:
            await asyncio.gather(*pairs.pop(name).tasks)
    for side in (gateway, picking):
        side.parts.world.ledger.check_invariants()
        if side.parts.world.ledger.total_requests:
            raise AssertionError("some load was not released")
    decided = (gateway.decided, picking.decided)
    return sum(map(operator.eq, *decided)), max(map(len, decided))


def _app(secret: Path) -> GatewayApp:
    workers = tuple(
        WorkerConfig(name=f"w{number}", url=f"http://127.0.0.1:{8000 + number}", model="m", slots=SLOTS)
        for number in range(WORKERS)
    )
    config = GatewayConfig(salt_secret_file=str(secret), queue=QueueConfig(max_waiting=WAITING))
    return build_app(GatewayFile(gateway=config, workers=workers))


async def _by_gateway(parts: GatewayParts, driver: FlowDriver, name: str, body: bytes) -> None:
    arrival = Arrival.of(Endpoint.CHAT, {})
    caller = parts.gateway.authenticator.caller(None)
    request, _ = await parts.gateway.pipeline.read(arrival, body, caller)
    call = Call(
        path=name,
        body=body,
        request_id=name,
        hide_usage=False,
        client=Client(_Silent()),  # type: ignore[arg-type]
        timeline=TimelineBuilder(request, 0.0),
        reply_headers=(),
        reservation=Reservation(),
    )
    await driver.drive(request_flow(request, parts.world), call)


async def _by_picker(picker: EndpointPicker, queue: asyncio.Queue[Message | None]) -> None:
    async for _answer in picker.process(_messages(queue)):
        pass

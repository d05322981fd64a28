"""What the endpoint-picker protocol asks for, and what must hold beside it: each case with a real Envoy."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stress.processes import free_port

from phasewise.gateway.api.auth import key_sha256
from picking.engine import StandIn, stand_ins
from picking.envoy_process import (
    CERTIFICATE,
    Config,
    PickerPorts,
    by_header,
    by_tls,
    envoy,
    fail_open,
    phasewise,
    trusting,
    with_pickers,
    with_subset_header,
    with_trailers,
)

CHAT = "/v1/chat/completions"
DESTINATION = "x-gateway-destination-endpoint"
LONG_STREAM = 400
LOOKS = 25
KEY = "a-key"
Lines = dict[str, str]


@dataclass(slots=True)
class Answer:
    """A response as the client got it."""

    status: int
    head: str
    body: bytes

    @property
    def port(self) -> int:
        """Of the engine that answered."""
        port: int = json.loads(self.body)["port"]
        return port


def chat(prompt: str, **fields: object) -> bytes:
    """The body of a request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}).encode()


async def send(
    port: int, body: bytes, headers: Lines | None = None, *, path: str = CHAT, trailers: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request; what follows is the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = "transfer-encoding: chunked" if trailers else f"content-length: {len(body)}"
    lines = "".join(f"{name}: {given}\r\n" for name, given in (headers or {}).items())
    method = "POST" if body else "GET"
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{lines}{size}\r\n\r\n".encode()
    )
    writer.write(b"%x\r\n%b\r\n0\r\nx-sum: 1\r\n\r\n" % (len(body), body) if trailers else body)
    return reader, writer


async def ask(
    port: int, body: bytes, headers: Lines | None = None, *, path: str = CHAT, trailers: bool = False
) -> Answer:
    """Send a request and read its whole response."""
    reader, writer = await send(port, body, headers, path=path, trailers=trailers)
    try:
        async with asyncio.timeout(20):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            answer = Answer(int(head.split()[1]), head, b"")
            with suppress(ConnectionResetError):  # Envoy does so if it has not read the whole request
                answer.body = await reader.read()
            return answer
    finally:
        writer.close()


@dataclass(slots=True)
class Scene:
    """Engines, a phasewise with a picker, and an Envoy."""

    engines: Sequence[StandIn]
    picker: PickerPorts
    pid: int
    envoy: int

    async def load(self) -> int:
        """The requests that phasewise has booked on engines."""
        metrics = (await ask(self.picker.http, b"", path="/metrics")).body.decode()
        return sum(
            int(float(it)) for it in re.findall(r"^phasewise_worker_requests\{.*?\} (\S+)", metrics, re.M)
        )

    async def has_load(self, expected: int) -> bool:
        """Whether so many requests are booked, at once or soon: metrics are kept for a second."""
        for _ in range(LOOKS):
            if await self.load() == expected:
                return True
            await asyncio.sleep(0.2)
        return False

    @property
    def ports(self) -> set[int]:
        """Of all engines."""
        return {it.port for it in self.engines}


@asynccontextmanager
async def scene(
    *changes: Callable[[Config], None], gateway: Config | None = None, slots: int = 64
) -> AsyncIterator[Scene]:
    """Two engines, phasewise and Envoy, with these changes of its configuration."""
    async with stand_ins(2) as engines:
        ports = [it.port for it in engines]
        async with (
            phasewise(ports, gateway, slots) as (picker, process),
            envoy(picker, ports, *changes) as port,
        ):
            yield Scene(engines, picker, process.pid, port)


# --- the cases --------------------------------------------------------------------------------------------


async def metadata_only(on: Scene) -> bool:
    """Envoy follows the metadata, and the engine sees the header with its own address."""
    answers = [await ask(on.envoy, chat(f"hello {number}")) for number in range(8)]
    named = [(it.port, headers.get(DESTINATION)) for it in on.engines for headers, _ in it.seen]
    return all(it.status == 200 for it in answers) and all(f"127.0.0.1:{port}" == to for port, to in named)


async def same_prefix(on: Scene) -> bool:
    """A prompt that an engine has computed goes there again."""
    prompts = [f"topic {number} " * 300 for number in range(6)]
    rounds = [[(await ask(on.envoy, chat(it, max_tokens=1))).port for it in prompts] for _ in range(3)]
    return rounds[0] == rounds[1] == rounds[2] and set(rounds[0]) == on.ports


async def subset(on: Scene) -> bool:
    """Only an engine of the subset is chosen."""
    for engine in on.engines:
        answers = [await ask(on.envoy, chat("hi"), {"x-subset": engine.address}) for _ in range(3)]
        if any(it.status != 200 or it.port != engine.port for it in answers):
            return False
    both = ",".join(it.address for it in on.engines)
    return (await ask(on.envoy, chat("hi"), {"x-subset": both})).status == 200


async def empty_subset(on: Scene) -> bool:
    """503 if no engine is in the subset."""
    return (await ask(on.envoy, chat("hi"), {"x-subset": "127.0.0.1:1"})).status == 503


async def large_body(on: Scene) -> bool:
    """Bodies of more than one piece arrive whole."""
    bodies = [chat("x" * size) for size in (61_000, 62_000, 124_000, 300_000, 2_000_000)]
    answers = [await ask(on.envoy, body) for body in bodies]
    got = {body for it in on.engines for _, body in it.seen}
    return all(it.status == 200 for it in answers) and got >= set(bodies)


async def client_header(on: Scene) -> bool:
    """A client's own header is not followed."""
    async with stand_ins(1) as (outside,):
        forms: tuple[Lines, ...] = (
            {DESTINATION: outside.address},
            {DESTINATION.title(): outside.address},
            {DESTINATION: outside.address, DESTINATION.upper(): outside.address},
            {DESTINATION: f"{outside.address},{outside.address}"},
        )
        answers = [await ask(on.envoy, chat("hi"), sent) for sent in forms]
        return all(it.status == 200 and it.port in on.ports for it in answers) and not outside.seen


async def trailers(on: Scene) -> bool:
    """Requests and responses with trailers pass, and their load is released."""
    asked = await ask(on.envoy, chat("hi"), trailers=True)
    reader, writer = await send(on.envoy, chat("trailers", stream=True), {"te": "trailers"})
    got = await reader.read()
    writer.close()
    return asked.status == 200 and b"x-usage: 3" in got and await on.has_load(0)


async def load_while_streaming(on: Scene) -> bool:
    """An engine's load is booked while it answers, and released at the end of the response."""
    reader, writer = await send(on.envoy, chat("hi", stream=True, max_tokens=60))
    await reader.readuntil(b"data: x")
    during = await on.has_load(1)
    await reader.read()
    writer.close()
    return during and await on.has_load(0)


async def client_cancel(on: Scene) -> bool:
    """A client that leaves releases the load."""
    reader, writer = await send(on.envoy, chat("hi", stream=True, max_tokens=LONG_STREAM))
    await reader.readuntil(b"data: x")
    during = await on.has_load(1)
    writer.close()
    return during and await on.has_load(0)


async def upstream_reset(on: Scene) -> bool:
    """An engine that closes the connection releases the load; the client gets Envoy's 503."""
    answers = [await ask(on.envoy, chat("reset")), await ask(on.envoy, chat("500"))]
    return [it.status for it in answers] == [503, 500] and await on.has_load(0)


async def models(on: Scene) -> bool:
    """The models come from phasewise, and other addresses, its own ones too, from nobody."""
    found = [await ask(on.envoy, b"", path=path) for path in ("/v1/models", "/v1/models/m")]
    closed = (
        "/metrics",
        "/v1/models/../../metrics",
        "/v1/models/%2e%2e/%2e%2e/metrics",
        "/phasewise/v1/workers",
    )
    missing = [await ask(on.envoy, b"", path=path) for path in closed]
    missing.append(await ask(on.envoy, chat("hi"), path="/v1/load_lora_adapter"))
    return all(it.status == 200 and b'"m"' in it.body for it in found) and {it.status for it in missing} == {
        404
    }


async def bad_body(on: Scene) -> bool:
    """The gateway's own checks of bodies hold."""
    answers = [await ask(on.envoy, body) for body in (b"{", chat("hi", cache_salt="mine"))]
    unknown = await ask(on.envoy, chat("hi").replace(b'"m"', b'"other"'))
    return [it.status for it in (*answers, unknown)] == [400, 400, 404]


async def health(on: Scene) -> bool:
    """The gRPC health service answers for every service that the protocol names."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{on.picker.grpc}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        names = ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
        answers = [await check(health_pb2.HealthCheckRequest(service=name)) for name in names]
    return all(it.status == health_pb2.HealthCheckResponse.SERVING for it in answers)


async def stopped_while_streaming(on: Scene) -> bool:
    """Streams go on when the picker stops. The last case of a scene."""
    reader, writer = await send(on.envoy, chat("hi", stream=True, max_tokens=40))
    await reader.readuntil(b"data: x")
    os.kill(on.pid, signal.SIGTERM)
    rest = await reader.read()
    writer.close()
    return rest.endswith(b"0\r\n\r\n")


async def shed(on: Scene) -> bool:
    """429 if every engine is busy and nobody may wait."""
    streams = [await send(on.envoy, chat("hi", stream=True, max_tokens=LONG_STREAM)) for _ in on.engines]
    for reader, _ in streams:
        await reader.readuntil(b"data: x")
    answer = await ask(on.envoy, chat("one too many"))
    for _, writer in streams:
        writer.close()
    return answer.status == 429 and "retry-after" in answer.head and await on.has_load(0)


async def waits_in_the_queue(on: Scene) -> bool:
    """A request waits for a slot; one whose client leaves during the wait is forgotten."""
    streams = [await send(on.envoy, chat("hi", stream=True, max_tokens=60)) for _ in on.engines]
    for reader, _ in streams:
        await reader.readuntil(b"data: x")
    _, left = await send(on.envoy, chat("leaves"))
    await asyncio.sleep(0.3)
    left.close()
    answer = await ask(on.envoy, chat("waits"))
    for _, writer in streams:
        writer.close()
    came = [body for it in on.engines for _, body in it.seen]
    return answer.status == 200 and chat("leaves") not in came and await on.has_load(0)


async def keys(on: Scene) -> bool:
    """Keys and limits are the gateway's, and engines do not get the key."""
    without = await ask(on.envoy, chat("hi"))
    known = [await ask(on.envoy, chat("hi"), {"authorization": f"Bearer {KEY}"}) for _ in range(2)]
    seen = [headers for it in on.engines for headers, _ in it.seen]
    salted = all(b'"cache_salt"' in body for it in on.engines for _, body in it.seen)
    hidden = salted and all("authorization" not in headers for headers in seen)
    return [without.status, *(it.status for it in known)] == [401, 200, 429] and hidden


async def no_engine(on: Scene) -> bool:
    """503 if no engine is ready."""
    return (await ask(on.envoy, chat("hi"))).status == 503


Case = Callable[[Scene], Awaitable[bool]]


async def conformance(report: Callable[[str, bool], None]) -> None:
    """Run all cases."""

    async def run(on: Scene, *cases: Case, named: str = "") -> None:
        for case in cases:
            try:
                passed = await case(on)
            except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
                print(f"{case.__name__}: {type(error).__name__} {error}")
                passed = False
            report(named + case.__name__, passed)

    usual: tuple[Case, ...] = (metadata_only, same_prefix, subset, empty_subset, large_body, trailers, models)
    usual += (load_while_streaming, client_cancel, upstream_reset, bad_body, health)
    async with scene(with_subset_header, with_trailers, trusting) as on:
        await run(on, *usual, client_header, stopped_while_streaming)
    async with scene(by_header, trusting) as on:
        await run(on, metadata_only, large_body, client_header, client_cancel, named="by header: ")
    async with scene(gateway={"queue": {"max_waiting": 0}}, slots=1) as on:
        await run(on, shed)
    async with scene(slots=1) as on:
        await run(on, waits_in_the_queue)
    limited = {"sha256": key_sha256(KEY), "tenant": "t", "requests_per_minute": 1}
    async with scene(gateway={"api_keys": [limited]}) as on:
        await run(on, keys)
    async with scene(
        by_tls, gateway={"tls": {"certificate": str(CERTIFICATE), "key": str(CERTIFICATE)}}
    ) as on:
        await run(on, metadata_only, large_body, named="by TLS: ")
    await _picker_down(report)
    await _one_of_two_killed(report)
    async with phasewise([free_port()]) as (picker, process), envoy(picker, [free_port()]) as port:
        await run(Scene((), picker, process.pid, port), no_engine)


async def _one_of_two_killed(report: Callable[[str, bool], None]) -> None:
    async with stand_ins(2) as engines:
        ports = [it.port for it in engines]
        async with (
            phasewise(ports, slots=1) as (one, _),
            phasewise(ports, slots=1) as (other, process),
            envoy(one, ports, with_pickers(one, other)) as port,
        ):
            long = chat("hi", stream=True, max_tokens=LONG_STREAM)
            streams = [await send(port, long) for _ in range(2 * len(engines))]
            for reader, _ in streams:
                await reader.readuntil(b"data: x")
            waiting = [asyncio.create_task(ask(port, chat("waits"))) for _ in range(4)]
            await asyncio.sleep(0.5)
            process.kill()
            for _, writer in streams:
                writer.close()
            answers = await asyncio.gather(*waiting)
            answers += [await ask(port, chat("hi")) for _ in range(8)]
            report("one of two pickers killed", {it.status for it in answers} == {200})


async def _picker_down(report: Callable[[str, bool], None]) -> None:
    nobody = PickerPorts(free_port(), free_port())
    async with stand_ins(2) as engines:
        ports = [it.port for it in engines]
        async with envoy(nobody, ports) as port:
            answer = await ask(port, chat("hi"))
            report("picker_down", answer.status >= 500 and not any(it.seen for it in engines))
        async with stand_ins(1) as (outside,), envoy(nobody, ports, fail_open, trusting) as port:
            sent = {DESTINATION: outside.address}
            answers = [await ask(port, chat("hi"), sent) for _ in range(4)]
            # Requests with a body do not fail open reliably, but none goes where the client says.
            statuses = {it.status for it in answers}
            report("picker_down, fail open", statuses <= {200, 500} and not outside.seen)

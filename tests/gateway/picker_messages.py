"""Messages as Envoy sends them, and a picker that gets them without Envoy."""

from __future__ import annotations

import asyncio

import orjson

from phasewise.fleet.config import GatewayConfig, GatewayFile, WorkerConfig
from phasewise.gateway.app import build_app
from phasewise.gateway.picker.messages import FULL_DUPLEX_STREAMED, ProcessingRequest
from phasewise.gateway.picker.picker import EndpointPicker

CHAT = "/v1/chat/completions"
ENDED = None


def head(path=CHAT, *, method="POST", subset=None, ends=False, mode=None, **headers):
    message = ProcessingRequest()
    message.request_headers.end_of_stream = ends
    message.protocol_config.request_body_mode = FULL_DUPLEX_STREAMED if mode is None else mode
    named = {name.replace("_", "-"): given for name, given in headers.items()}
    add_headers(message.request_headers, {":method": method, ":path": path, **named})
    if subset is not None:
        namespace = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        namespace.update({"x-gateway-destination-endpoint-subset": subset})
    return message


def add_headers(part, headers):
    for name, given in headers.items():
        line = part.headers.headers.add()
        line.key, line.raw_value = name, given.encode()


def body(content=b"", *, ends=True):
    message = ProcessingRequest()
    message.request_body.body, message.request_body.end_of_stream = content, ends
    return message


def trailers():
    message = ProcessingRequest()
    message.request_trailers.SetInParent()
    return message


def response(status=200, details="via_upstream"):
    message = ProcessingRequest()
    add_headers(message.response_headers, {":status": str(status)})
    if details:
        message.attributes["envoy.filters.http.ext_proc"].update({"response.code_details": details})
    return message


def chat(text="hi", **fields):
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields})


class Exchanged:
    """One request as the picker sees it: what Envoy sends, and what it gets."""

    def __init__(self, picker, *messages):
        self._queue = asyncio.Queue()
        self.got = []
        self._more = asyncio.Event()
        for message in messages:
            self.send(message)
        self.task = asyncio.create_task(self._run(picker))

    def send(self, message):
        self._queue.put_nowait(message)

    async def _messages(self):
        while (message := await self._queue.get()) is not ENDED:
            yield message

    async def _run(self, picker):
        async for answer in picker.process(self._messages()):
            self.got.append(answer)
            self._more.set()

    async def first(self, count=1):
        """The first answers, once there are so many."""
        async with asyncio.timeout(5):
            while len(self.got) < count:
                self._more.clear()
                await self._more.wait()
        return self.got[:count]

    async def end(self):
        self.send(ENDED)
        await self.task
        return self.got

    @property
    def address(self):
        return self.got[0].dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]


class Picking:
    """A picker with workers that are up, w0 at port 8000 and so on."""

    def __init__(self, count=2, slots=64, urls=None, api_key_file=None, **gateway):
        urls = urls or [f"http://127.0.0.1:{8000 + number}" for number in range(count)]
        workers = tuple(
            WorkerConfig(name=f"w{number}", url=url, model="m", slots=slots, api_key_file=api_key_file)
            for number, url in enumerate(urls)
        )
        self.parts = build_app(GatewayFile(gateway=GatewayConfig(**gateway), workers=workers))._parts
        self.world = self.parts.world
        for worker in workers:
            self.world.cluster.mark_up(worker.name, "1")
        self.picker = EndpointPicker(self.parts)
        self.picker._sees_responses = True  # as after the first one

    def exchange(self, *messages):
        return Exchanged(self.picker, *messages)

    def ask(self, content=None, **about):
        """A whole request."""
        return self.exchange(head(**about), body(chat() if content is None else content))

    @property
    def load(self):
        self.world.ledger.check_invariants()
        return self.world.ledger.total_requests

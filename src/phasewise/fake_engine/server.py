"""A fake engine's HTTP server: an ASGI application with vLLM's endpoints, /steps and faults on request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from phasewise.core.errors import ConfigError
from phasewise.core.steps import FinishedRequest
from phasewise.fake_engine.engine_loop import EngineLoop, GenerationFailed, TokenStream
from phasewise.fake_engine.faults import FaultBoard, RequestFaults, fault_from_json
from phasewise.fake_engine.metrics import EngineMetrics
from phasewise.fake_engine.step_log import RecentSteps
from phasewise.fake_engine.wire_replies import INTERNAL_ERROR, embeddings_reply
from phasewise.fake_engine.wire_requests import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    BadRequest,
    GenerationCall,
    as_chat,
    check_model,
    kv_params,
    parse_call,
    parse_json,
    prompt_of,
)
from phasewise.fake_engine.wire_typed import Writer, writer_of
from phasewise.simulator import tokens
from phasewise.simulator.engine import EmittedToken, EngineShape, VirtualRequest
from phasewise.simulator.kv import KvLink

if TYPE_CHECKING:
    from phasewise.fake_engine.engine import FakeEngine

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "0.32.0"
_JSON = b"application/json"
_WHOLE = re.compile(r"[0-9]*")
_SECONDS = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?)?")


class ClientGone(Exception):
    """The client closed its connection, or the engine cut it."""


@dataclass(frozen=True, slots=True)
class EngineCore:
    """The parts of one incarnation of an engine that the application uses."""

    model: str
    shape: EngineShape
    clock: Callable[[], float]
    loop: EngineLoop
    metrics: EngineMetrics
    steps: RecentSteps
    kv_link: KvLink | None = None


class FakeEngineApp:
    """The application of one incarnation."""

    def __init__(self, core: EngineCore, faults: FaultBoard, host: FakeEngine) -> None:
        self._core = core
        self._faults = faults
        self._host = host
        self._numbers = count()
        self._not_hung = asyncio.Event()
        self._not_hung.set()
        self._routes: dict[str, dict[str, Callable[[_Exchange], Coroutine[Any, Any, None]]]] = {
            **{path: {"POST": self._generate} for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)},
            "/v1/messages/count_tokens": {"POST": self._count_tokens},
            "/v1/embeddings": {"POST": self._embed},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/steps": {"GET": self._steps},
            "/fake/fault": {"GET": self._show_faults, "POST": self._add_fault, "DELETE": self._clear_faults},
        }

    def hang(self, hung: bool) -> None:
        """Answer nothing while hung, except at the endpoint for faults."""
        if hung:
            self._not_hung.clear()
        else:
            self._not_hung.set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        methods = self._routes.get(scope["path"])
        handler = methods.get(scope["method"]) if methods is not None else None
        try:
            await exchange.read_body()
            if not self._not_hung.is_set() and exchange.path != "/fake/fault":
                await exchange.unless_gone(self._not_hung.wait())
            if methods is None:
                await exchange.send_json(404, {"detail": "Not Found"})
            elif handler is None:
                await exchange.send_json(405, {"detail": "Method Not Allowed"})
            else:
                await handler(exchange)
        except BadRequest as rejection:
            await exchange.send_json(rejection.status, rejection.body)
        except ClientGone:
            await exchange.gone()

    # --- generation ---------------------------------------------------------------------------------------

    async def _generate(self, exchange: _Exchange) -> None:
        arrived_s = self._core.clock()
        shape = self._core.shape
        call = parse_call(
            exchange.path,
            exchange.body,
            client_request_id=exchange.header(b"x-request-id"),
            model=self._core.model,
            max_model_len=shape.max_model_len,
        )
        faults = self._faults.for_request(call.prompt_text)
        if faults.error:
            raise BadRequest("this failure was injected", "InternalServerError", None, 500)
        if faults.delay_s:
            await exchange.unless_gone(asyncio.sleep(faults.delay_s))
        requests = [self._request(call, arrived_s, choice) for choice in range(call.choices)]
        stream = self._core.loop.submit(requests)
        exchange.when_gone(stream.break_off)
        writers = {
            request.request_id: writer_of(
                exchange.path, call, self._core.model, shape.block_size, int(arrived_s), request.choice
            )
            for request in requests
        }
        answer = _Answer(exchange, stream, faults, self._host, call.choices)
        try:
            if call.stream:
                await self._stream(answer, writers)
            else:
                await self._reply(answer, writers)
        finally:
            for request in requests:
                # No effect on a request that has ended.
                self._core.loop.abort(request.request_id)

    def _request(self, call: GenerationCall, arrived_s: float, choice: int) -> VirtualRequest:
        return VirtualRequest(
            # Clients may reuse an id, even at the same time.
            request_id=f"{call.request_id}#{next(self._numbers)}",
            choice=choice,
            prompt_ids=call.prompt_ids,
            max_tokens=call.max_tokens,
            arrived_s=arrived_s,
            min_tokens=call.min_tokens,
            ignore_eos=call.ignore_eos,
            cache_salt=call.cache_salt,
            client_id=call.request_id if call.choices == 1 else f"{choice}_{call.request_id}",
            keep_kv=call.keep_kv,
            remote_kv=call.remote_kv,
        )

    async def _stream(self, answer: _Answer, writers: Mapping[str, Writer]) -> None:
        exchange, writer = answer.exchange, next(iter(writers.values()))
        await exchange.begin(200, b"text/event-stream; charset=utf-8")
        try:
            await self._stream_tokens(answer, writers)
        except GenerationFailed:
            # It fails before its first token.
            await exchange.send_part(writer.failing())
        await exchange.send_part(writer.end)
        await exchange.end()

    async def _stream_tokens(self, answer: _Answer, writers: Mapping[str, Writer]) -> None:
        exchange = answer.exchange
        token = await answer.next()
        for writer in writers.values():
            if opening := writer.opening():
                await exchange.send_part(opening)
        await exchange.send_part(writers[token.request_id].content(token))
        while answer.account is None:
            token = await answer.next()
            await exchange.send_part(writers[token.request_id].content(token))
        if usage := writers[token.request_id].closing(answer.account):
            await exchange.send_part(usage)

    async def _reply(self, answer: _Answer, writers: Mapping[str, Writer]) -> None:
        choices: dict[str, list[EmittedToken]] = {request_id: [] for request_id in writers}
        try:
            while answer.account is None:
                token = await answer.next()
                choices[token.request_id].append(token)
        except GenerationFailed:
            raise BadRequest(*INTERNAL_ERROR) from None
        writer, params = writers[token.request_id], self._kv_params(token)
        body = writer.plain(tuple(choices.values()), answer.account, params)
        await answer.exchange.send_bytes(200, _JSON, body)

    def _kv_params(self, token: EmittedToken) -> dict[str, Any] | None:
        link, finished = self._core.kv_link, token.finished
        if link is None or finished is None or token.kept_blocks is None:
            return None
        return kv_params(
            link.address,
            link.engine_id,
            token.request_id,
            token.kept_blocks,
            finished.prompt_tokens,
            finished.cached_tokens,
        )

    async def _embed(self, exchange: _Exchange) -> None:
        data = parse_json(exchange.body)
        check_model(data, self._core.model)
        reply = embeddings_reply(data, self._core.model, exchange.header(b"x-request-id"))
        await exchange.send_json(200, reply)

    # --- information --------------------------------------------------------------------------------------

    async def _models(self, exchange: _Exchange) -> None:
        model = {
            "id": self._core.model,
            "object": "model",
            "created": int(self._core.clock()),
            "owned_by": "vllm",
            "root": self._core.model,
            "parent": None,
            "max_model_len": self._core.shape.max_model_len,
            "permission": [],
        }
        await exchange.send_json(200, {"object": "list", "data": [model]})

    async def _health(self, exchange: _Exchange) -> None:
        await exchange.send_bytes(200, None, b"")

    async def _version(self, exchange: _Exchange) -> None:
        await exchange.send_json(200, {"version": VERSION})

    async def _metrics(self, exchange: _Exchange) -> None:
        kind = b"text/plain; version=1.0.0; charset=utf-8"
        self._core.loop.show_load(self._core.metrics.observe_load)
        await exchange.send_bytes(200, kind, self._core.metrics.text())

    async def _tokenize(self, exchange: _Exchange) -> None:
        data = parse_json(exchange.body)
        check_model(data, self._core.model)
        if "messages" not in data and "prompt" not in data:
            raise BadRequest("prompt or messages is required", "BadRequestError", "prompt", 400)
        _, ids = prompt_of(data)
        strings = [tokens.decode([token]) for token in ids] if data.get("return_token_strs") else None
        length = self._core.shape.max_model_len
        reply = {"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": strings}
        await exchange.send_json(200, reply)

    async def _count_tokens(self, exchange: _Exchange) -> None:
        data = parse_json(exchange.body)
        check_model(data, self._core.model)
        _, ids = prompt_of(as_chat(MESSAGES, data))
        await exchange.send_json(200, {"input_tokens": len(ids)})

    async def _detokenize(self, exchange: _Exchange) -> None:
        data = parse_json(exchange.body)
        check_model(data, self._core.model)
        ids = data.get("tokens")
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise BadRequest("tokens must be whole numbers", "BadRequestError", "tokens", 400)
        await exchange.send_json(200, {"prompt": tokens.decode(ids)})

    async def _steps(self, exchange: _Exchange) -> None:
        query = parse_qs(exchange.query)
        since, limit, since_unix_s = (
            query.get(name, [""])[-1] for name in ("since", "limit", "since_unix_s")
        )
        if not (_WHOLE.fullmatch(since) and _WHOLE.fullmatch(limit) and _SECONDS.fullmatch(since_unix_s)):
            raise BadRequest(
                "since and limit must be whole numbers, since_unix_s a time", "BadRequestError", None, 400
            )
        lines = self._core.steps.lines(
            int(since or 0),
            int(limit) if limit else None,
            self._core.clock(),
            float(since_unix_s) if since_unix_s else None,
        )
        await exchange.send_bytes(200, b"application/x-ndjson", b"".join(lines))

    # --- faults -------------------------------------------------------------------------------------------

    async def _show_faults(self, exchange: _Exchange) -> None:
        await exchange.send_json(200, {"faults": [asdict(fault) for fault in self._faults.faults]})

    async def _add_fault(self, exchange: _Exchange) -> None:
        try:
            fault = fault_from_json(parse_json(exchange.body))
        except ConfigError as error:
            raise BadRequest(str(error), "BadRequestError", None, 400) from None
        self._faults.add(fault)
        await self._show_faults(exchange)
        self._host.faults_changed()

    async def _clear_faults(self, exchange: _Exchange) -> None:
        self._faults.clear()
        self._host.faults_changed()
        await self._show_faults(exchange)


class _Answer:
    """The tokens of one answer, with its faults; `account` is that of all its choices, once they ended."""

    def __init__(
        self, exchange: _Exchange, stream: TokenStream, faults: RequestFaults, host: FakeEngine, choices: int
    ) -> None:
        self.exchange = exchange
        self.account: FinishedRequest | None = None
        self._open = choices
        self._output_tokens = 0
        self._stream = stream
        self._faults = faults
        self._host = host
        self._handed_out = 0

    async def next(self) -> EmittedToken:
        """The next token, unless a fault comes first."""
        poison = self._faults.poison
        if poison is not None and poison.after_tokens == self._handed_out:
            self._host.die(poison.restart_after_s)
            raise ClientGone
        if self._faults.cut_after_tokens == self._handed_out:
            self._host.cut(self.exchange.client)
            raise ClientGone
        token = await self._stream.next()
        if token is None:
            raise ClientGone
        self._handed_out += 1
        if token.finished is not None:
            self._open -= 1
            self._output_tokens += token.finished.output_tokens
            if not self._open:
                self.account = replace(token.finished, output_tokens=self._output_tokens)
        return token


class _Exchange:
    """One request and its reply."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode()
        self.client: tuple[str, int] = tuple(scope["client"])
        self.body = b""
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._watch: asyncio.Task[None] | None = None

    def header(self, name: bytes) -> str | None:
        """A request header."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name), None)

    async def read_body(self) -> None:
        """Read the request's body."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.body = b"".join(parts)

    # --- the client's connection --------------------------------------------------------------------------

    async def gone(self) -> None:
        """Return when the connection is closed or the reply is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def when_gone(self, act: Callable[[], None]) -> None:
        """Act as soon as the client is gone; no effect after the reply."""
        self._watch = asyncio.ensure_future(self.gone())
        self._watch.add_done_callback(lambda _: act())

    async def unless_gone(self, awaited: Coroutine[Any, Any, Any]) -> None:
        """Wait for something, but only as long as the client is there."""
        gone, wanted = asyncio.ensure_future(self.gone()), asyncio.ensure_future(awaited)
        try:
            await asyncio.wait({gone, wanted}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ClientGone
        finally:
            gone.cancel()
            wanted.cancel()

    # --- the reply ----------------------------------------------------------------------------------------

    async def send_json(self, status: int, data: object) -> None:
        """A whole reply in JSON."""
        await self.send_bytes(status, _JSON, orjson.dumps(data))

    async def send_bytes(self, status: int, kind: bytes | None, body: bytes) -> None:
        """A whole reply."""
        await self.begin(status, kind, length=len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, kind: bytes | None, length: int | None = None) -> None:
        """The head of a reply; without a length its body is chunked."""
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        headers += [] if kind is None else [(b"content-type", kind)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_part(self, part: bytes) -> None:
        """Send a part of the body immediately."""
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self) -> None:
        """The body is complete."""
        await self._send({"type": "http.response.body", "body": b""})

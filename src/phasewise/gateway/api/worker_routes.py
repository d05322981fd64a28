"""What workers say of themselves: of their models to clients, their counters and tokenizer to an admin.

The gateway asks with the worker's own key, over connections that carry no client's request.
"""

from __future__ import annotations

from typing import Any

import orjson

from phasewise.clients.http_client import Timeouts
from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected, UpstreamError
from phasewise.gateway.http_errors import JSON, send_error
from phasewise.gateway.server.client import Client, Scope
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling.world import ClusterView

BODY_LIMIT_BYTES = 8 * 1024 * 1024
TIMEOUTS = Timeouts(connect_s=2.0, head_s=10.0, idle_s=10.0)
LARGEST_REPLY_BYTES = 1024 * 1024


class WorkerRoutes:
    """Passes an admin's question on to one worker, and its answer back as it came."""

    def __init__(self, cluster: ClusterView, connect: Connect) -> None:
        self._cluster = cluster
        self._connect = connect

    async def metrics(self, scope: Scope, client: Client) -> None:
        """Answer with the worker's own Prometheus page."""
        await self._pass_on("GET", scope["path"], client)

    async def tokenize(self, scope: Scope, client: Client) -> None:
        """Answer with what the worker's tokenizer says of the body."""
        await self._pass_on("POST", scope["path"], client, await client.read_body(BODY_LIMIT_BYTES))

    async def _pass_on(self, method: str, path: str, client: Client, body: bytes = b"") -> None:
        """`path` ends with the worker's name and the engine's own path."""
        *_, name, asked = path.split("/")
        state = next((state for state in self._cluster.snapshot() if state.worker.name == name), None)
        if state is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"no worker is named {name[:100]}",
                hint="GET /phasewise/v1/workers lists them",
            )
        engine = self._connect(state.worker, TIMEOUTS)
        try:
            reply = await engine.fetch(method, f"/{asked}", headers=JSON if body else (), body=body)
        except UpstreamError as error:
            words = f"{name} does not answer: {error.message}"
            await send_error(client, RejectReason.NO_HEALTHY_WORKER, words, retry_after_s=1.0)
            return
        finally:
            engine.close()
        kind = next((value for header, value in reply.headers if header == b"content-type"), b"text/plain")
        await client.respond(reply.status, [(b"content-type", kind)], reply.body)


class ModelCards:
    """The cards of each model, by the worker that gave them when it was last seen to start."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._by_worker: dict[str, dict[str, dict[str, Any]]] = {}

    def note(self, worker: str, reply: bytes) -> None:
        """A worker answered; what is no list of models is as good as none."""
        cards: dict[str, dict[str, Any]] = {}
        try:
            found = orjson.loads(reply)["data"] if len(reply) <= LARGEST_REPLY_BYTES else ()
            cards = {card["id"]: card for card in found if isinstance(card["id"], str)}
        except (orjson.JSONDecodeError, LookupError, TypeError):
            pass
        self._by_worker[worker] = cards

    def entry(self, model: str) -> dict[str, Any]:
        """A model as its first engine describes it, with the least length that any of its engines takes."""
        workers = [state.worker.name for state in self._cluster.serving(model)]
        cards = [card for name in workers if (card := self._by_worker.get(name, {}).get(model))]
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "phasewise"}
        if not cards:
            return entry
        lengths = [length for card in cards if isinstance(length := card.get("max_model_len"), int)]
        return entry | cards[0] | ({"max_model_len": min(lengths)} if lengths else {})

"""What an admin may ask of a worker through the gateway: its counters and its tokenizer.

The gateway asks with the worker's own key, over connections that carry no client's request.
"""

from __future__ import annotations

from phasewise.clients.http_client import Headers, Timeouts
from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind, RequestRejected, UpstreamError
from phasewise.gateway.http_errors import send_error
from phasewise.gateway.server.client import Client
from phasewise.gateway.upstream.engines import Connect
from phasewise.scheduling.world import ClusterView

BODY_LIMIT_BYTES = 8 * 1024 * 1024
TIMEOUTS = Timeouts(connect_s=2.0, head_s=10.0, idle_s=10.0)
_JSON: Headers = ((b"content-type", b"application/json"),)


class WorkerRoutes:
    """Passes an admin's question on to one worker, and its answer back as it came."""

    def __init__(self, cluster: ClusterView, connect: Connect) -> None:
        self._cluster = cluster
        self._connect = connect

    async def metrics(self, path: str, client: Client) -> None:
        """Answer with the worker's own Prometheus page."""
        await self._pass_on("GET", path, client)

    async def tokenize(self, path: str, client: Client) -> None:
        """Answer with what the worker's tokenizer says of the body."""
        await self._pass_on("POST", path, client, await client.read_body(BODY_LIMIT_BYTES))

    async def _pass_on(self, method: str, path: str, client: Client, body: bytes = b"") -> None:
        """`path` ends with the worker's name and the engine's own path."""
        *_, name, asked = path.split("/")
        state = next((it for it in self._cluster.snapshot() if it.worker.name == name), None)
        if state is None:
            raise RequestRejected(
                RejectionKind.NOT_FOUND,
                f"no worker is named {name[:100]}",
                hint="GET /phasewise/v1/workers lists them",
            )
        engine = self._connect(state.worker, TIMEOUTS)
        try:
            reply = await engine.fetch(method, f"/{asked}", headers=_JSON if body else (), body=body)
        except UpstreamError as error:
            words = f"{name} does not answer: {error.message}"
            await send_error(client, RejectReason.NO_HEALTHY_WORKER, words, retry_after_s=1.0)
            return
        finally:
            engine.close()
        kind = next((value for header, value in reply.headers if header == b"content-type"), b"text/plain")
        await client.respond(reply.status, [(b"content-type", kind)], reply.body)

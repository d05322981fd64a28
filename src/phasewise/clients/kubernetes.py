"""Lists objects of a Kubernetes API server, and follows their changes."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson

from phasewise.clients.http_client import Access, HttpClient, Timeouts
from phasewise.core.errors import ConfigError, FailureKind, UpstreamError

Object = Mapping[str, Any]

WATCH_S = 240
"""The API server ends a watch after this time; the next one goes on where it ended."""
TIMEOUTS = Timeouts(connect_s=5.0, head_s=10.0, idle_s=WATCH_S + 30.0)
_TCP = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 12_000}
PROBES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), to) for name, to in _TCP.items() if hasattr(socket, name)),
)
"""A watch is silent while nothing changes, so TCP asks whether the API server's machine is still there: after
5 s of silence, then every 3 s. The connection ends 14 s after its last sign of life."""
LONGEST_BYTES = 32 * 1024 * 1024
GONE = 410

ENDPOINT_SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
INFERENCE_POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
PODS = "/api/v1/namespaces/{}/pods"


class ListAgain(Exception):
    """The API server no longer has the changes since the last list."""


@dataclass(slots=True)
class Listed:
    """Objects by name, as of a version of the cluster. `follow` keeps them up to date."""

    version: str = ""
    objects: dict[str, Object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server, with the files of a service account.

    The token is read for every request: the kubelet replaces it before it expires.
    """

    url: str
    token_file: str
    ca_file: str

    async def get(self, path: str, selector: str | None = None) -> Object:
        """One object, or a list of them."""
        client = self._client()
        try:
            query = "" if selector is None else "?" + urlencode({"labelSelector": selector})
            reply = await client.fetch("GET", path + query)
            _check(reply.status, path)
            found: Object = orjson.loads(reply.body)
            return found
        finally:
            client.close()

    async def list(self, path: str, selector: str) -> Listed:
        """The objects that the selector matches."""
        found = await self.get(path, selector)
        objects = {item["metadata"]["name"]: item for item in found.get("items") or ()}
        return Listed(found["metadata"]["resourceVersion"], objects)

    async def follow(self, path: str, selector: str, listed: Listed) -> AsyncIterator[None]:
        """Keep the list up to date: yields after each change, and ends when the API server ends the watch.

        Raises ListAgain if changes may have been missed.
        """
        query = urlencode(
            {
                "labelSelector": selector,
                "watch": "1",
                "resourceVersion": listed.version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": WATCH_S,
            }
        )
        client = self._client()
        try:
            async with await client.send("GET", f"{path}?{query}") as reply:
                if reply.status == GONE:
                    raise ListAgain
                _check(reply.status, path)
                pending = b""
                while data := await reply.read():
                    *lines, pending = (pending + data).split(b"\n")
                    if len(pending) > LONGEST_BYTES:
                        raise UpstreamError(FailureKind.PROTOCOL, "the API server sent an endless line")
                    changes = [_apply(orjson.loads(line), listed) for line in lines if line.strip()]
                    if any(changes):
                        yield
        finally:
            client.close()

    def _client(self) -> HttpClient:
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
            tls = ssl.create_default_context(cafile=self.ca_file) if self.url.startswith("https") else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the service account's files cannot be read ({error.strerror or 'no certificates'})",
                hint="give the pod a service account (automountServiceAccountToken: true), or use dns",
            ) from None
        return HttpClient(self.url, TIMEOUTS, Access(token, tls), PROBES)


def api_server(url: str | None, token_file: str, ca_file: str) -> ApiServer:
    """The API server at this address; by default the one whose pod this process is in."""
    if url is None:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
        if host is None:
            raise ConfigError(
                "this process is in no Kubernetes cluster, so no Service can be looked up",
                hint="set kubernetes.api to the API server's address, or use dns",
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiServer(url, token_file, ca_file)


def own_namespace(token_file: str) -> str:
    """The namespace of this pod, which is beside its token; `default` outside a cluster."""
    try:
        return Path(token_file).with_name("namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return "default"


def _apply(event: Object, listed: Listed) -> bool:
    """Whether the list has changed."""
    kind, changed = event["type"], event["object"]
    if kind == "ERROR":
        if changed.get("code") == GONE:
            raise ListAgain
        raise UpstreamError(FailureKind.SERVER_ERROR, "the API server ended the watch with an error")
    listed.version = changed["metadata"]["resourceVersion"]
    if kind == "BOOKMARK":
        return False
    name = changed["metadata"]["name"]
    if kind == "DELETED":
        listed.objects.pop(name, None)
    else:
        listed.objects[name] = changed
    return True


def _check(status: int, path: str) -> None:
    """Raise what the status means, in words."""
    if status == 200:
        return
    what = path.rpartition("/namespaces/")[2]
    if status in {401, 403}:
        allowed = "does not know this service account" if status == 401 else "does not let it read"
        raise ConfigError(
            f"the API server {allowed}: {what}",
            hint="bind its service account to a Role with get, list and watch (the Helm chart does)",
        )
    if status == 404:
        raise ConfigError(f"the cluster has no {what}", hint="check its name and its namespace")
    raise UpstreamError(FailureKind.SERVER_ERROR, f"the API server answered {status} for {what}")

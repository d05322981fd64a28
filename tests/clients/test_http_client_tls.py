"""The client over TLS, against a server whose certificate is the one beside this file."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import FailureKind, UpstreamError
from tests.raw_server import raw_server

CERTIFICATE = Path(__file__).parent / "localhost-for-tests-only.pem"


@asynccontextmanager
async def tls_server() -> AsyncIterator[tuple[str, list[bytes]]]:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with raw_server(serve, tls=context) as port:
        yield f"https://localhost:{port}", asked


async def test_a_server_that_is_trusted_is_talked_to_over_tls(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    async with tls_server() as (url, asked):
        client = HttpClient(url)
        bodies = [(await client.fetch("GET", "/v1/models")).body for _ in range(2)]
        client.close()
    assert bodies == [b"hello", b"hello"]
    assert all(head.startswith(b"GET /v1/models HTTP/1.1") for head in asked)


async def test_a_server_that_nobody_vouches_for_is_rejected_with_the_reason():
    async with tls_server() as (url, asked):
        client = HttpClient(url)
        with pytest.raises(UpstreamError, match="TLS failed: its certificate is not trusted") as rejection:
            await client.fetch("GET", "/v1/models")
        client.close()
    assert rejection.value.kind is FailureKind.CONNECTION_REFUSED
    assert asked == []


async def test_a_server_without_tls_is_called_so():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with raw_server(serve) as port:
        client = HttpClient(f"https://127.0.0.1:{port}")
        with pytest.raises(UpstreamError, match="TLS failed: the server speaks none"):
            await client.fetch("GET", "/v1/models")

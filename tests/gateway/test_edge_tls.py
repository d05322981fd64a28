"""The gateway over TLS, with the certificate the tests of the client use."""

from __future__ import annotations

import asyncio
import ssl
import traceback

import orjson
import pytest

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import ConfigError, UpstreamError
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import GatewayConfig, GatewayFile, WorkerConfig
from phasewise.gateway.app import build_app
from phasewise.gateway.processes.child import server_config
from tests.gateway.harness import chat_body, events_of, running_gateway
from tests.paths import ROOT

CERTIFICATE = str(ROOT / "tests" / "clients" / "localhost-for-tests-only.pem")
TLS = {"certificate": CERTIFICATE, "key": CERTIFICATE}


async def test_a_stream_comes_over_tls_and_plain_http_does_not(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", CERTIFICATE)
    async with running_engines(1) as engines, running_gateway(engines, tls=TLS) as gateway:
        client = HttpClient(gateway.url.replace("http://127.0.0.1", "https://localhost"))
        try:
            body = orjson.dumps(chat_body(stream=True))
            reply = await client.fetch("POST", "/v1/chat/completions", body=body)
        finally:
            client.close()
        assert events_of(reply.body)[-1] == "[DONE]"
        with pytest.raises(UpstreamError):
            await gateway.fetch("GET", "/health")


async def test_a_request_that_is_rejected_at_the_edge_gets_its_error_over_tls():
    context = ssl.create_default_context(cafile=CERTIFICATE)
    async with running_engines(1) as engines, running_gateway(engines, tls=TLS) as gateway:
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n")
        reply = await asyncio.wait_for(reader.read(), 60)
        writer.transport.abort()
        assert reply.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("wrong", ["certificate", "key"])
def test_a_certificate_that_is_not_there_is_reported_at_the_start(tmp_path, wrong):
    worker = WorkerConfig(name="w", url="http://127.0.0.1:1", model="m")
    config = GatewayConfig(tls={**TLS, wrong: str(tmp_path / "none.pem")})
    file = GatewayFile(gateway=config, workers=(worker,))
    with pytest.raises(ConfigError, match=r"gateway\.tls.*none\.pem"):
        server_config(file, build_app(file))


def test_a_key_that_was_put_where_its_file_belongs_is_not_repeated():
    worker = WorkerConfig(name="w", url="http://127.0.0.1:1", model="m")
    config = GatewayConfig(tls={**TLS, "key": "-----BEGIN PRIVATE KEY-----\nhunter2\n"})
    file = GatewayFile(gateway=config, workers=(worker,))
    with pytest.raises(ConfigError, match=r"gateway\.tls.*PEM files") as caught:
        server_config(file, build_app(file))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_holds_no_certificate_is_reported_at_the_start(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing\n")
    worker = WorkerConfig(name="w", url="http://127.0.0.1:1", model="m")
    config = GatewayConfig(tls={**TLS, "certificate": str(tmp_path / "empty.pem")})
    file = GatewayFile(gateway=config, workers=(worker,))
    with pytest.raises(ConfigError, match="PEM"):
        server_config(file, build_app(file))

"""A real redis-server on a free port of loopback, for tests that count limits together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real_engine import free_port

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0
INSTALL_HINT = "apt-get install redis-server"


class RedisServer:
    """A server that can be killed, held up and started again on the same port; it keeps nothing on disk.

    With a `certificate`, a PEM file with its key in it, it speaks TLS alone.
    """

    def __init__(self, folder: Path, password: str | None = None, certificate: Path | None = None) -> None:
        self.port = free_port()
        self._folder = folder
        self._password = password
        self._certificate = certificate
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        login = "" if self._password is None else f":{self._password}@"
        if self._certificate is not None:
            return f"rediss://{login}localhost:{self.port}/0?ssl_ca_certs={self._certificate}"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [
            *self._program(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", str(self._folder), *self._port_options(),
        ]  # fmt: skip
        if self._password is not None:
            command += ["--requirepass", self._password]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_ready()

    def _program(self) -> list[str]:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip(f"redis-server is not installed. hint: {INSTALL_HINT}")
        return [program]

    def _variables(self) -> dict[str, str]:
        return {}

    def _port_options(self) -> list[str]:
        if self._certificate is None:
            return ["--port", str(self.port)]
        pem = str(self._certificate)
        return [
            "--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no",
            "--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", pem,
        ]  # fmt: skip

    def kill(self) -> None:
        """As kill -9 does."""
        process = self._running()
        process.kill()
        process.wait(STOP_WITHIN_S)
        self._process = None

    def hold_up(self) -> None:
        """It keeps its connections and answers nobody."""
        self._running().send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("this server does not run")
        return self._process

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline_s:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                    return
            except OSError:
                if self._running().poll() is not None:
                    break
                time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"redis-server did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")


@contextmanager
def running_redis(
    folder: Path, password: str | None = None, certificate: Path | None = None
) -> Iterator[RedisServer]:
    """A server until the block is left."""
    server = RedisServer(folder, password, certificate)
    server.start()
    try:
        yield server
    finally:
        server.stop()

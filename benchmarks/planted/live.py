"""A gateway whose engine is behind a slow proxy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from .fleet import GATEWAY_PORT, PHASEWISE, Fleet, wait_for
from .processes import running

HERE = Path(__file__).resolve().parent
PROXY_PORT, PROXIED_GATEWAY_PORT = 19200, GATEWAY_PORT + 1
STEPS_OFFSET = 10_000
NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: an engine whose recorder is said to be there has none."""


@contextlib.contextmanager
def proxied_gateway(fleet: Fleet, delay_ms: int) -> Iterator[str]:
    """Another gateway, with a slow proxy on its way to the same engine, though not to the step recorder."""
    (engine,) = fleet.engines
    port, steps_port = (int(url.rpartition(":")[2]) for url in (engine.url, engine.steps_url))
    routes = (f"{PROXY_PORT}:{port}:{delay_ms}", f"{PROXY_PORT + STEPS_OFFSET}:{steps_port}:0")
    url = f"http://127.0.0.1:{PROXIED_GATEWAY_PORT}"
    proxied = f"http://127.0.0.1:{PROXY_PORT}"
    gateway = (*PHASEWISE, "gateway", proxied, "--port", str(PROXIED_GATEWAY_PORT))
    with running((sys.executable, str(HERE / "proxy.py"), *routes)):
        wait_for(f"{proxied}/health")
        with running(gateway):
            wait_for(f"{url}/health")
            yield url

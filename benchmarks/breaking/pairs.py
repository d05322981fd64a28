"""Two prefill and two decode engines, fakes of this process, behind a gateway that parts every request.

How they are broken is scenarios.py's, what is asked of them load.py's.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from resuming.timelines import ADMIN_KEY_SHA256, wait_for_workers
from stress.processes import free_port, running, wait_until_ready

from phasewise.clients.http_client import HttpClient
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.kv import Connector

MODEL = "fake-model"
LEASE_S = 6
TIMEOUT_S = 0.5
STEPS_TAKE = 8.0
"""Times as long as those of the fastest fake engine, so that there is time to break something."""
WITHIN_S = 60.0
_KV_TRANSFERS = re.compile(r'^phasewise_kv_transfers_total\{outcome="(\w+)"\} (\S+)$', re.MULTILINE)
_BOOKED = re.compile(r"^phasewise_worker_requests\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Pairs:
    """The engines and the gateway before them."""

    prefill: list[FakeEngine]
    decode: list[FakeEngine]
    url: str
    client: HttpClient

    @property
    def engines(self) -> list[FakeEngine]:
        """All of them."""
        return [*self.prefill, *self.decode]

    async def kv_transfers(self) -> Mapping[str, float]:
        """How many were tried, by what became of them."""
        return {outcome: float(count) for outcome, count in _KV_TRANSFERS.findall(await self._metrics())}

    async def booked(self) -> float:
        """Requests that the gateway takes to be under way on its workers."""
        return sum(map(float, _BOOKED.findall(await self._metrics())))

    async def fixed(self) -> None:
        """Every engine is as it was, and the gateway knows."""
        for engine in self.engines:
            fix(engine)
        await until(lambda: all(engine.alive for engine in self.engines))
        await wait_for_workers(self.url, len(self.engines))

    async def _metrics(self) -> str:
        return (await self.client.fetch("GET", "/metrics")).body.decode()


def fix(engine: FakeEngine) -> None:
    """Nothing but its ordinary slowness is left of what was done to an engine."""
    engine.clear_faults()
    engine.inject("slow", factor=STEPS_TAKE)


@asynccontextmanager
async def running_pairs() -> AsyncIterator[Pairs]:
    """The engines and a gateway, until the block is left."""
    config = FakeEngineConfig(model=MODEL, kv_transfer=Connector(lease_s=LEASE_S, handshake_timeout_s=0.1))
    async with running_engines(2, config) as prefill, running_engines(2, config) as decode:
        workers = [_worker(it, f"p{at}", "prefill") for at, it in enumerate(prefill)]
        workers += [_worker(it, f"d{at}", "decode") for at, it in enumerate(decode)]
        with _gateway(workers) as (url, process, log):
            # The engines must go on stepping while the gateway looks for them.
            await asyncio.to_thread(wait_until_ready, url, process, log)
            client = HttpClient(url)
            try:
                pairs = Pairs(prefill, decode, url, client)
                await pairs.fixed()
                yield pairs
            finally:
                client.close()


@asynccontextmanager
async def undisturbed_engine() -> AsyncIterator[str]:
    """The address of an engine of the same kind to which nothing happens."""
    config = replace(FakeEngineConfig(), model=MODEL)
    async with running_engines(1, config) as (engine,):
        yield engine.base_url


def _worker(engine: FakeEngine, name: str, role: str) -> dict[str, Any]:
    return {"name": name, "url": engine.base_url, "model": MODEL, "role": role, "pool": role, "slots": 64}


@contextmanager
def _gateway(workers: list[dict[str, Any]]) -> Iterator[tuple[str, Any, Path]]:
    port = free_port()
    kv_transfer = {"when": "always", "timeout_s": TIMEOUT_S, "lease_s": LEASE_S}
    settings = {"port": port, "admin_key_sha256": ADMIN_KEY_SHA256, "keep_timelines": 100_000}
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "gateway.yaml", Path(folder) / "gateway.log"
        file.write_text(json.dumps({"gateway": {**settings, "kv_transfer": kv_transfer}, "workers": workers}))
        command = [sys.executable, "-m", "phasewise.cli", "gateway", str(file)]
        with log.open("wb") as written, running(command, stderr=written) as process:
            yield f"http://127.0.0.1:{port}", process, log


async def until(condition: Any) -> None:  # noqa: ANN401 - a function or one that is awaited
    """Return when the condition holds; it is asked often, as what it waits for is short."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.001)

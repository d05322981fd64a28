"""A gateway in front of fake engines with KV transfers, one pool for each phase."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

from phasewise.core.kv_transfer import SplitRule
from phasewise.core.worker import Role
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import KvTransferConfig
from phasewise.simulator.kv import Connector
from tests.gateway.harness import running_gateway, worker_for

LEASE_S = 6
QUICK = Connector(handshake_timeout_s=0.05, lease_s=LEASE_S)
PAIRS = {"when": SplitRule.ALWAYS, "timeout_s": 0.5, "lease_s": LEASE_S}
LONG_TEXT = " ".join(f"word{number}" for number in range(300))


class Pair:
    """The gateway and its engines, by what they are for."""

    def __init__(self, gateway, prefill, decode):
        self.gateway = gateway
        self.prefill = prefill
        self.decode = decode

    @property
    def engines(self):
        return [*self.prefill, *self.decode]


@asynccontextmanager
async def running_pair(
    prefill=1, decode=1, *, config=None, prefill_connector=QUICK, decode_connector=QUICK, **options
):
    """So many engines of each kind behind a gateway that parts every request it can."""
    config = config or FakeEngineConfig()
    kv_transfer = KvTransferConfig(**{**PAIRS, **options.pop("kv_transfer", {})})
    async with (
        running_engines(prefill, replace(config, kv_transfer=prefill_connector)) as readers,
        running_engines(decode, replace(config, kv_transfer=decode_connector)) as writers,
    ):
        workers = [worker_for(it, f"p{at}", role=Role.PREFILL) for at, it in enumerate(readers)]
        workers += [worker_for(it, f"d{at}", role=Role.DECODE) for at, it in enumerate(writers)]
        async with running_gateway(workers, kv_transfer=kv_transfer, **options) as gateway:
            yield Pair(gateway, readers, writers)

"""The same loads over HTTP: engines, a gateway process for each rule, and clients that keep to their times.

Fake engines cost next to no processor time, so all rules serve the same load at the same time, each with
engines of its own: what disturbs the machine disturbs them alike. Real engines serve one rule after another.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resuming.reading import WHOLE, Read, read_stream
from resuming.timelines import ADMIN_KEY_SHA256, wait_for_workers
from stress.processes import free_port, running, wait_until_ready

from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.core.kv_transfer import SplitRule
from phasewise.costs.fit.step import StepCost
from phasewise.fake_engine.engine import FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.kv import Connector

from .loads import Ask, Cell, met

MODEL = "fake-model"
PATIENT = Timeouts(connect_s=10.0, head_s=600.0, idle_s=600.0)
MAX_WAIT_S = 600.0
FIRST_ID, LAST_ID = 1_000, 30_000
"""Prompts are sent as token ids, which every tokenizer of the models here has."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client saw."""

    ask: Ask
    ttft_s: float
    tpot_s: float | None

    @property
    def good(self) -> bool:
        """Whether it got what it was promised."""
        return met(self.ask, self.ttft_s, self.tpot_s)


@asynccontextmanager
async def fake_arms(
    rules: Sequence[SplitRule], cell: Cell, cost: StepCost
) -> AsyncIterator[dict[SplitRule, str]]:
    """For each rule the address of a gateway before engines of its own."""
    config = FakeEngineConfig(
        model=MODEL, cost=cost, shape=EngineShape(total_blocks=2_000), kv_transfer=Connector()
    )
    async with AsyncExitStack() as stack:
        urls = {}
        for rule in rules:
            readers = await stack.enter_async_context(running_engines(cell.prefill, config))
            writers = await stack.enter_async_context(running_engines(cell.decode, config))
            workers = [_worker(it, f"prefill-{at}", "prefill") for at, it in enumerate(readers)]
            workers += [_worker(it, f"decode-{at}", "decode") for at, it in enumerate(writers)]
            url, process, log = stack.enter_context(gateway(workers, rule))
            await asyncio.to_thread(wait_until_ready, url, process, log)
            await wait_for_workers(url, len(workers))
            urls[rule] = url
        yield urls


@contextmanager
def gateway(workers: Sequence[dict[str, Any]], rule: SplitRule) -> Iterator[tuple[str, Any, Path]]:
    """A gateway process that goes by a rule; its address, itself and its log."""
    port = free_port()
    settings = {
        "port": port,
        "admin_key_sha256": ADMIN_KEY_SHA256,
        "kv_transfer": {"when": rule.value, "timeout_s": MAX_WAIT_S, "lease_s": 1200},
    }
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "gateway.yaml", Path(folder) / "gateway.log"
        file.write_text(json.dumps({"gateway": settings, "workers": list(workers)}))
        with (
            log.open("wb") as written,
            running([sys.executable, "-m", "phasewise.cli", "gateway", str(file)], stderr=written) as process,
        ):
            yield f"http://127.0.0.1:{port}", process, log


async def play(url: str, model: str, load: Sequence[Ask]) -> list[Answered]:
    """Send every request at its time, whatever became of those before it."""
    client = HttpClient(url, PATIENT)
    began_s = time.monotonic()
    try:
        return list(
            await asyncio.gather(
                *(_asked(client, model, ask, number, began_s) for number, ask in enumerate(load))
            )
        )
    finally:
        client.close()


async def _asked(client: HttpClient, model: str, ask: Ask, number: int, began_s: float) -> Answered:
    due_s = began_s + ask.at_s
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    times_s: list[float] = []

    def note(_: Read) -> None:
        times_s.append(time.monotonic())

    read = await read_stream(client, "/v1/completions", _body(model, ask, number), note)
    if read.ended != WHOLE or not times_s:
        return Answered(ask, float("inf"), None)
    tpot_s = (times_s[-1] - times_s[0]) / (ask.output_tokens - 1) if ask.output_tokens > 1 else None
    return Answered(ask, times_s[0] - due_s, tpot_s)


def _body(model: str, ask: Ask, number: int) -> dict[str, Any]:
    # No two prompts begin alike: what a cache spares is no part of this.
    spread = LAST_ID - FIRST_ID
    ids = [FIRST_ID + (number * 7_919 + at * (number % 89 + 1)) % spread for at in range(ask.prompt_tokens)]
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": ask.output_tokens,
        "min_tokens": ask.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }


def _worker(engine: FakeEngine, name: str, role: str) -> dict[str, Any]:
    return {"name": name, "url": engine.base_url, "model": MODEL, "role": role, "pool": role}

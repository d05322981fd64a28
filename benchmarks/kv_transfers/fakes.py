"""Two fake engines in one process, in the same arrangements as real ones and with steps as long as theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stress.processes import DidNotStart, running

from .fleets import Engines, Layout

MODEL = "fake-model"
CHUNK_TOKENS = {
    Layout.MIXED: (("main-0", "mixed", 2048), ("main-1", "mixed", 2048)),
    Layout.DISAGGREGATED: (("prefill-0", "prefill", 8192), ("decode-0", "decode", 512)),
}
"""Name, role and tokens in a step of each engine."""
PROGRAM = """
import asyncio, json, sys
from contextlib import AsyncExitStack
import uvloop
from phasewise.simulator.requests import PRESETS
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.fleet import running_engines
from phasewise.simulator.kv import Connector
from phasewise.simulator.engine import EngineShape

async def serve():
    async with AsyncExitStack() as stack:
        told = []
        for role, tokens in json.loads(sys.argv[1]):
            config = FakeEngineConfig(
                steps_port=0,
                shape=EngineShape(max_num_batched_tokens=tokens),
                cost=PRESETS["cpu-demo"],
                kv_transfer=None if role == "mixed" else Connector(),
            )
            (engine,) = await stack.enter_async_context(running_engines(1, config))
            told.append([engine.base_url, engine.steps_url])
        print(json.dumps(told), flush=True)
        await asyncio.Event().wait()

uvloop.run(serve())
"""


@contextmanager
def fake_engines(layout: Layout) -> Iterator[Engines]:
    """Both engines, as a gateway is told of them."""
    members = CHUNK_TOKENS[layout]
    asked = json.dumps([[role, tokens] for _, role, tokens in members])
    with running([sys.executable, "-c", PROGRAM, asked], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise DidNotStart("the fake engines ended at once; what they wrote stands above")
        workers = tuple(
            {"name": name, "role": role, "url": url, "steps_url": steps_url, "model": MODEL}
            for (name, role, _), (url, steps_url) in zip(members, json.loads(line), strict=True)
        )
        yield Engines(layout, MODEL, workers)

"""`phasewise fake-engine`: engines without a model, to try gateways and load generators against."""

from __future__ import annotations

import json
from typing import Annotated

import typer
import uvloop

from phasewise.adapters.step_feed import PORT_OFFSET
from phasewise.errors import ConfigError
from phasewise.fake_engine.costs import PRESETS, preset
from phasewise.fake_engine.engine import DEFAULT_MODEL, FakeEngine, FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import run_engines
from phasewise.fake_engine.jitter import Jitter
from phasewise.fake_engine.kv_connector import Connector
from phasewise.fake_engine.virtual_engine import EngineShape


def fake_engine(
    count: Annotated[int, typer.Option(min=1, help="How many engines.")] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first engine; the others follow.")] = 9100,
    steps: Annotated[
        bool, typer.Option(help="Serve step records at each port + 10000 too, as the recorder does.")
    ] = True,
    model: Annotated[str, typer.Option(help="Name of the model they claim to serve.")] = DEFAULT_MODEL,
    cost: Annotated[
        str, typer.Option("--preset", help=f"How long steps take: {', '.join(PRESETS)}.")
    ] = "fast",
    slow: Annotated[float, typer.Option(help="Steps take this many times as long.")] = 1.0,
    jitter: Annotated[
        float, typer.Option(help="Steps vary by this share of their length, 0.1 by about 10%.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the jitter; each engine has noise of its own.")] = 0,
    max_model_len: Annotated[int, typer.Option(help="Longest prompt and answer, in tokens.")] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests that run at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Most tokens in one step.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.")] = 128,
    total_blocks: Annotated[int, typer.Option(help="KV blocks.")] = 364,
    hand_over: Annotated[
        bool,
        typer.Option(
            "--hand-over", help="Let them hand KV over to one another, as by vLLM's NIXL connector."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where they are as one JSON object.")] = False,
) -> None:
    """Run engines that speak like vLLM but write made-up words, until interrupted.

    They batch, chunk prompts, reuse prefixes and preempt as vLLM does. POST /fake/fault makes one fail.
    """
    if port + count - 1 + (PORT_OFFSET if steps else 0) > 65_535:
        raise ConfigError(
            f"ports from {port} on leave no room for {count} engines", hint="lower --port or use --no-steps"
        )
    config = FakeEngineConfig(
        model=model,
        host=host,
        port=port,
        steps_port=port + PORT_OFFSET if steps else None,
        shape=EngineShape(max_model_len, max_num_seqs, max_num_batched_tokens, block_size, total_blocks),
        cost=preset(cost),
        jitter=Jitter(jitter, seed) if jitter else None,
        faults=(Fault(FaultKind.SLOW, factor=slow),) if slow != 1.0 else (),
        hand_over=Connector() if hand_over else None,
    )
    uvloop.run(run_engines(count, config, _announce_json if as_json else _announce))


def _announce(engines: list[FakeEngine]) -> None:
    for engine in engines:
        typer.echo(engine.base_url)


def _announce_json(engines: list[FakeEngine]) -> None:
    facts = [
        {"url": engine.base_url, "steps_url": engine.steps_url, "model": engine.model} for engine in engines
    ]
    typer.echo(json.dumps({"engines": facts}))

"""`phasewise engine fake`: engines without a model, to test gateways and load generators."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from phasewise.cli.options import AsJson
from phasewise.clients import event_loop
from phasewise.clients.step_feed import PORT_OFFSET
from phasewise.core.errors import UsageError
from phasewise.fake_engine.engine import DEFAULT_MODEL, FakeEngine, FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import run_engines
from phasewise.fake_engine.jitter import Jitter
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.kv import Connector
from phasewise.simulator.requests import PRESETS, preset

LISTEN = "Processes"
SPEED = "Speed"
SHAPE = "Model and capacity"


def fake(
    count: Annotated[int, typer.Option(min=1, help="Number of engines.", rich_help_panel=LISTEN)] = 1,
    port: Annotated[
        int,
        typer.Option(
            help="Port of the first engine; the others use the ports after it.", rich_help_panel=LISTEN
        ),
    ] = 9100,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=LISTEN)] = "127.0.0.1",
    steps: Annotated[
        bool,
        typer.Option(
            help="Also serve step records at each port + 10000, as the step recorder does.",
            rich_help_panel=LISTEN,
        ),
    ] = True,
    as_json: AsJson = False,
    cost: Annotated[
        str,
        typer.Option(
            "--preset", metavar="|".join(PRESETS), help="Speed profile of the steps.", rich_help_panel=SPEED
        ),
    ] = "fast",
    slow: Annotated[
        float, typer.Option(help="Multiply the time of every step by this.", rich_help_panel=SPEED)
    ] = 1.0,
    jitter: Annotated[
        float,
        typer.Option(
            help="Random variation of step times as a share; 0.1 is about 10%.", rich_help_panel=SPEED
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(help="Seed of the jitter; each engine varies independently.", rich_help_panel=SPEED)
    ] = 0,
    model: Annotated[
        str, typer.Option(help="Name of the model that they report.", rich_help_panel=SHAPE)
    ] = DEFAULT_MODEL,
    max_model_len: Annotated[
        int, typer.Option(help="Longest prompt plus answer, in tokens, as in vLLM.", rich_help_panel=SHAPE)
    ] = 8192,
    max_num_seqs: Annotated[
        int,
        typer.Option(help="Largest number of requests that run at once, as in vLLM.", rich_help_panel=SHAPE),
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Largest number of tokens in one step, as in vLLM.", rich_help_panel=SHAPE)
    ] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.", rich_help_panel=SHAPE)] = 128,
    total_blocks: Annotated[int, typer.Option(help="Number of KV blocks.", rich_help_panel=SHAPE)] = 364,
    kv_transfer: Annotated[
        bool,
        typer.Option(
            "--kv-transfer",
            help="Let the engines transfer KV to each other, like vLLM's NIXL connector.",
            rich_help_panel=SHAPE,
        ),
    ] = False,
) -> None:
    """Run engines with vLLM's API that write made-up words, until interrupted.

    They batch, chunk prompts, reuse prefixes and preempt as vLLM does. POST /fake/fault injects a failure.
    """
    if port + count - 1 + (PORT_OFFSET if steps else 0) > 65_535:
        raise UsageError(
            f"{count} engines from port {port} on would need ports above 65535",
            hint="lower --port or use --no-steps",
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
        kv_transfer=Connector() if kv_transfer else None,
    )
    event_loop.run(run_engines(count, config, _announce_json if as_json else _announce))


def _announce(engines: list[FakeEngine]) -> None:
    for engine in engines:
        typer.echo(engine.base_url)


def _announce_json(engines: list[FakeEngine]) -> None:
    facts = [
        {"url": engine.base_url, "steps_url": engine.steps_url, "model": engine.model} for engine in engines
    ]
    typer.echo(json.dumps({"engines": facts}))

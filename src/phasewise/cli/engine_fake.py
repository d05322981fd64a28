"""`phasewise engine fake`: engines without a model, to test gateways and load generators."""

from __future__ import annotations

from typing import Annotated

import typer

from phasewise.cli.options import AsJson, in_panel, print_json
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

process_option = in_panel("Processes")
speed_option = in_panel("Speed")
shape_option = in_panel("Model and capacity")


def fake(
    count: Annotated[int, process_option(min=1, help="Number of engines.")] = 1,
    port: Annotated[
        int, process_option(help="Port of the first engine; the others use the ports after it.")
    ] = 9100,
    host: Annotated[str, process_option(help="Address to listen on.")] = "127.0.0.1",
    steps: Annotated[
        bool, process_option(help="Also serve step records at each port + 10000, as the step recorder does.")
    ] = True,
    as_json: AsJson = False,
    cost: Annotated[
        str, speed_option("--preset", metavar="|".join(PRESETS), help="Speed profile of the steps.")
    ] = "fast",
    slow: Annotated[float, speed_option(help="Multiply the time of every step by this.")] = 1.0,
    jitter: Annotated[
        float, speed_option(help="Random variation of step times as a share; 0.1 is about 10%.")
    ] = 0.0,
    seed: Annotated[int, speed_option(help="Seed of the jitter; each engine varies independently.")] = 0,
    model: Annotated[str, shape_option(help="Name of the model that they report.")] = DEFAULT_MODEL,
    max_model_len: Annotated[
        int, shape_option(help="Longest prompt plus answer, in tokens, as in vLLM.")
    ] = 8192,
    max_num_seqs: Annotated[
        int, shape_option(help="Largest number of requests that run at once, as in vLLM.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, shape_option(help="Largest number of tokens in one step, as in vLLM.")
    ] = 2048,
    block_size: Annotated[int, shape_option(help="Tokens per KV block.")] = 128,
    total_blocks: Annotated[int, shape_option(help="Number of KV blocks.")] = 364,
    kv_transfer: Annotated[
        bool,
        shape_option(
            "--kv-transfer", help="Let the engines transfer KV to each other, like vLLM's NIXL connector."
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

    def announce(engines: list[FakeEngine]) -> None:
        facts = [
            {"url": engine.base_url, "steps_url": engine.steps_url, "model": engine.model}
            for engine in engines
        ]
        if as_json:
            print_json({"engines": facts})
        else:
            typer.echo("\n".join(engine.base_url for engine in engines))

    event_loop.run(run_engines(count, config, announce))

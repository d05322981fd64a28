"""`phasewise up`: start a fleet on this machine and keep it running, here or in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from phasewise.benchmark import demo_traffic
from phasewise.cli.engine import EnginePython, current_engine
from phasewise.cli.model import fetch_gguf_here
from phasewise.cli.options import print_json
from phasewise.core.errors import EngineStartFailed, FleetError, UsageError
from phasewise.fleet.config import (
    LLAMA_CPP,
    VLLM,
    FleetConfig,
    Levers,
    Pool,
    fleet_with,
    load_fleet,
    phasewise_home,
)
from phasewise.fleet.engines.environment import device_for, reject_missing_llama_cpp
from phasewise.fleet.engines.known_models import fleet_model, gguf_file
from phasewise.fleet.local.placement import this_machine
from phasewise.fleet.local.plan import FleetPlan, MemberPlan, ProcessPlan, plan_fleet
from phasewise.fleet.local.port_check import reject_taken_ports, wanted_ports
from phasewise.fleet.local.run_files import (
    RunPaths,
    already_running,
    is_supervised,
    logs_folder,
    private_opener,
    read_state,
    write_private,
)
from phasewise.fleet.local.state import FleetState
from phasewise.fleet.local.supervisor import Assignment, supervise
from phasewise.report.console import err, out
from phasewise.report.fleet_view import FleetDisplay, print_ready, state_as_json

DEFAULT_TIMEOUT_S = 600.0
_FOLLOW_POLL_S = 0.2
# Fewer slots than users, so that requests wait for one: in the engine, as the gateway passes all of them on.
DEMO_FLEET = FleetConfig(
    pools=(Pool(engine=LLAMA_CPP, slots=64, levers=Levers(max_num_seqs=2, max_model_len=2048)),),
)
DEMO_TRAFFIC = "demo-traffic"
_WHY_FLOAT32 = (
    "this CPU has no native bfloat16, so prefill in bfloat16 would be about 3x slower; "
    "KV needs twice the memory. Set a pool's `engine_flags: [--dtype, bfloat16]` to keep bfloat16"
)


def up(
    fleet_file: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET.YAML", help="Fleet file. (default: one engine with the demo model)"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A known name, a folder, a Hugging Face id or, for llama.cpp, a .gguf file, instead of the "
            "file's."
        ),
    ] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Start llama.cpp with a small model, which is downloaded at first, and let "
            f"{demo_traffic.USERS} users of its own ask questions. Needs no vLLM.",
        ),
    ] = False,
    name: Annotated[str | None, typer.Option(help="The fleet's name, instead of the file's.")] = None,
    port: Annotated[int | None, typer.Option(help="The gateway's port, instead of the file's.")] = None,
    engine_port: Annotated[
        int | None, typer.Option(help="The first engine's port, instead of the file's.")
    ] = None,
    engine_keys: Annotated[
        bool | None,
        typer.Option(
            "--engine-keys/--no-engine-keys",
            help="Whether only the gateway can use the engines, instead of the file's.",
            show_default=False,
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", help="Return when the fleet is ready, and leave it running in the background."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the start may take.")
    ] = DEFAULT_TIMEOUT_S,
    engine_python: EnginePython = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what runs as one JSON object, once it is ready.")
    ] = False,
) -> None:
    """Start engines and a gateway on this machine, watch them, and restart those that die.

    Ctrl-C finishes running streams and stops everything; a second Ctrl-C does not wait. Exit code 1 when the
    fleet could not be started.
    """
    home = phasewise_home(os.environ)
    if demo and (fleet_file is not None or model is not None):
        raise UsageError("--demo has a fleet and a model of its own", hint="leave out the file and --model")
    fleet = fleet_with(
        DEMO_FLEET if demo else load_fleet(fleet_file) if fleet_file is not None else FleetConfig(),
        model=model,
        name=name,
        first_engine_port=engine_port,
        gateway_port=port,
        engine_keys=engine_keys,
    )
    if is_supervised(RunPaths(home, fleet.name)):
        raise already_running(fleet.name)
    reject_missing_llama_cpp(fleet)
    if demo and not gguf_file(fleet.model, home).is_file():
        fetch_gguf_here(fleet.model, home)
    engine = current_engine(engine_python) if fleet.has(VLLM) else None
    served = fleet_model(fleet, home, os.environ)
    plan = plan_fleet(fleet, engine, served, this_machine(device_for(engine)), home)
    if demo:
        plan = plan.model_copy(update={"traffic": _demo_traffic(plan)})
    reject_taken_ports(wanted_ports(plan))
    if plan.dtype is not None:
        err.print(f"dtype {plan.dtype}: {_WHY_FLOAT32}", soft_wrap=True)
    if detach:
        _run_detached(plan, timeout, as_json)
    else:
        _run_here(plan, timeout, as_json)


def _demo_traffic(plan: FleetPlan) -> MemberPlan:
    gateway = plan.gateway
    process = ProcessPlan(
        argv=(sys.executable, "-m", demo_traffic.__name__, gateway.url),
        affinity=gateway.process.affinity,
        log=str(logs_folder(Path(plan.home)) / f"{plan.name}-{DEMO_TRAFFIC}.log"),
    )
    return MemberPlan(
        name=DEMO_TRAFFIC, process=process, port=gateway.port, url=gateway.url, cores=gateway.cores
    )


def _run_here(plan: FleetPlan, timeout_s: float, as_json: bool) -> None:
    announced = False
    with FleetDisplay() as display:

        def show(state: FleetState) -> None:
            nonlocal announced
            display.show(state)
            if state.all_ready and not announced:
                announced = True
                display.settle()
                _announce(state, as_json, "Ctrl-C stops it.")

        supervise(plan, timeout_s, show)
    err.print("stopped")


def _run_detached(plan: FleetPlan, timeout_s: float, as_json: bool) -> None:
    paths = plan.paths
    # The record of an earlier fleet must not be mistaken for the new one.
    paths.state.unlink(missing_ok=True)
    write_private(paths.plan, Assignment(plan=plan, ready_within_s=timeout_s).model_dump_json().encode())
    paths.supervisor_log.parent.mkdir(parents=True, exist_ok=True)
    with open(paths.supervisor_log, "wb", opener=private_opener) as log:
        supervisor = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "phasewise.fleet.local.supervisor", str(paths.plan)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=paths.supervisor_log.parent,
            start_new_session=True,
        )
    try:
        state = _follow_until_ready(plan, supervisor)
    except KeyboardInterrupt:
        err.print("stopping")
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()
        raise
    other_name = "" if plan.name == FleetConfig().name else f" {plan.name}"
    _announce(state, as_json, f"`phasewise down{other_name}` stops it.")


def _follow_until_ready(plan: FleetPlan, supervisor: subprocess.Popen[bytes]) -> FleetState:
    paths = plan.paths
    with FleetDisplay() as display:
        while True:
            ended = supervisor.poll() is not None
            state = read_state(paths)
            if state is not None:
                display.show(state)
                if state.all_ready and not ended:
                    return state
            if ended:
                break
            time.sleep(_FOLLOW_POLL_S)
    if state is not None and state.failure is not None:
        raise EngineStartFailed(state.failure.message, hint=state.failure.hint)
    raise FleetError(f"fleet {plan.name} ended before it was ready", hint=f"see {paths.supervisor_log}")


def _announce(state: FleetState, as_json: bool, how_to_stop: str) -> None:
    if as_json:
        print_json(state_as_json(state))
    else:
        print_ready(state, how_to_stop)
    out.file.flush()

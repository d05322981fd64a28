"""`phasewise engine validate`: which published claims hold on this hardware, as a report to share."""

from __future__ import annotations

import asyncio
import os
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGHUP, SIGTERM
from typing import Annotated

import typer

from phasewise.cli import engine_size
from phasewise.cli.help_style import RESULT
from phasewise.cli.measuring import calibrate_with_view, measure_with_view
from phasewise.cli.outputs import Interrupts, reject_unwritable
from phasewise.clients import event_loop
from phasewise.clients.host import allow_many_streams
from phasewise.core.errors import ConfigError, PhasewiseError
from phasewise.experiments.calibrate.calibrate import CalibrateSpec
from phasewise.experiments.calibrate.result import Calibration
from phasewise.experiments.lever_runs.engines import running_engines
from phasewise.experiments.lever_runs.launch import (
    LONGEST_UNASKED_TOKENS,
    EngineSize,
    FleetLauncher,
    model_or_quantized,
    own_context_tokens,
    shared_gpu_flags,
    size_here,
)
from phasewise.experiments.validate.claims import judge_claims, read_judged
from phasewise.experiments.validate.crosscheck import VllmBench
from phasewise.experiments.validate.environment import (
    check_environment,
    hardware,
    private_names,
    software,
)
from phasewise.experiments.validate.plan import GROUPS, Step, chosen_steps
from phasewise.experiments.validate.private import PrivateNames
from phasewise.experiments.validate.record import (
    Outcome,
    Settings,
    ValidationReport,
    report_json,
)
from phasewise.experiments.validate.run import ValidationRun, ValidationTools
from phasewise.fleet.config import DEMO_MODEL, phasewise_home
from phasewise.fleet.engines.demo_model import DEMO_MODELS, resolve_model
from phasewise.fleet.engines.environment import EngineEnvironment
from phasewise.fleet.local.placement import Machine, this_machine
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.session import RunSpec
from phasewise.report.console import err, fail, out
from phasewise.report.validation.page import validation_page
from phasewise.report.validation.screen import markdown_row, render

WHAT = "What to try"
MOST_ENGINES = 2
FEWEST_MINUTES = 1.0


def validate(
    read: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[REPORT]...",
            help="Check these reports and print their lines for the page of reports; measure nothing.",
        ),
    ] = None,
    *,
    model: Annotated[
        str, typer.Option(help="A known name, a folder or a Hugging Face id.", rich_help_panel=WHAT)
    ] = DEMO_MODEL,
    minutes: Annotated[
        float,
        typer.Option(
            min=FEWEST_MINUTES, help="The most minutes that the run may take.", rich_help_panel=WHAT
        ),
    ] = 30.0,
    only: Annotated[
        str,
        typer.Option(
            metavar="STEP,...",
            help=f"Try only these: {', '.join(GROUPS)}. Faults include the calibration that sizes them.",
            rich_help_panel=WHAT,
        ),
    ] = "",
    seed: Annotated[
        int, typer.Option(min=0, help="Repeat the requests of another run.", rich_help_panel=WHAT)
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME",
            help="Write NAME.json and NAME.html. (default: phasewise-validation- and the time)",
            rich_help_panel=RESULT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.", rich_help_panel=RESULT)
    ] = False,
    cores: engine_size.Cores = None,
    gpus: engine_size.Gpus = None,
    kv_cache_memory_bytes: engine_size.KvCacheMemory = None,
    context: engine_size.Context = None,
    engine_flags: Annotated[
        str,
        typer.Option(
            metavar="FLAGS",
            help='More flags for every engine, such as "--dtype bfloat16". The report shows them.',
            rich_help_panel=engine_size.ENGINES,
        ),
    ] = "",
    engine_python: engine_size.Python = None,
) -> None:
    """Check which published claims hold on this hardware, in at most 30 minutes, and write a report.

    Starts engines on this machine and stops them again; others are left alone. It compares with `vllm bench
    serve`, calibrates, plants three faults, and measures two levers. The report holds no prompts and no names
    of hosts or users, so that it can be shared. Ctrl-C writes a report of what was done.
    """
    if read:
        _check_reports(read)
        return
    steps = chosen_steps([name.strip() for name in only.split(",") if name.strip()])
    written = output or Path(time.strftime("phasewise-validation-%Y%m%d-%H%M%S"))
    files = Path(f"{written}.json"), Path(f"{written}.html")
    for file in files:
        reject_unwritable("--output", file)
    engine = engine_size.engine_to_start(engine_python)
    home = phasewise_home(os.environ)
    asked = EngineSize(
        cores=cores, gpus=gpus, kv_cache_memory_bytes=kv_cache_memory_bytes, context_tokens=context
    )
    machine = this_machine(engine.device)
    size = size_here(asked, machine, own_context_tokens(model, home, os.environ))
    job = Job(model, home, engine, machine, size, tuple(shlex.split(engine_flags)), minutes, seed)
    job.tokenizer()
    allow_many_streams()
    data = report_json(event_loop.run(_validate(job, steps)))
    files[0].write_bytes(data)
    # What is shown is what was written, and what others can read.
    report = read_judged(data, files[0].name)
    files[1].write_text(validation_page(report), encoding="utf-8")
    if as_json:
        typer.echo(data.decode(), nl=False)
    else:
        out.print(render(report))
    _say(f"wrote {files[0]} and {files[1]}")
    if report.interrupted:
        raise typer.Exit(130)
    failed = any(not step.done for step in report.steps)
    if failed and report.count(Outcome.NOT_TRIED) == len(report.claims):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Job:
    """What is validated, and with which engines."""

    model: str
    home: Path
    engine: EngineEnvironment
    machine: Machine
    size: EngineSize
    flags: tuple[str, ...]
    minutes: float
    seed: int

    def tokenizer(self) -> str:
        """Where the model's tokenizer is; ConfigError if the model must be fetched first."""
        return resolve_model(self.model, self.home)

    def settings(self, private: PrivateNames) -> Settings:
        """The same for a report: a folder is named by its last part."""
        folder = Path(self.model).expanduser()
        named = folder.name if folder.is_dir() and self.model not in DEMO_MODELS else self.model
        return Settings(
            model=private.taken_out(named),
            device=self.engine.device,
            cores=self.size.cores,
            gpus=self.size.gpus,
            kv_cache_memory_bytes=self.size.kv_cache_memory_bytes,
            context_tokens=self.size.context_tokens,
            engine_flags=tuple(map(private.taken_out, self.flags)),
            seed=self.seed,
            budget_minutes=self.minutes,
        )


async def _validate(job: Job, steps: Sequence[Step]) -> ValidationReport:
    """Run the steps with live progress, and report what was done, however the run ends."""
    interrupts, private, began_s = Interrupts(), private_names(), time.monotonic()
    run = ValidationRun(steps, 60 * job.minutes, job.size.context_tokens or LONGEST_UNASKED_TOKENS, job.seed)
    with interrupts.handled(SIGTERM, SIGHUP):
        try:
            await _run_steps(run, job, private, interrupts)
        except asyncio.CancelledError:
            if not interrupts.forgives():
                raise
        except PhasewiseError as error:
            # An engine that does not stop costs nobody the report.
            fail(error)
    return ValidationReport(
        day=time.strftime("%Y-%m-%d", time.gmtime()),
        took_minutes=round((time.monotonic() - began_s) / 60, 1),
        interrupted=interrupts.requested,
        hardware=hardware(job.engine.device, private),
        software=software(job.engine),
        settings=job.settings(private),
        steps=tuple(run.results),
        measured=run.measured,
        claims=judge_claims(run.measured, run.results),
    )


async def _run_steps(run: ValidationRun, job: Job, private: PrivateNames, interrupts: Interrupts) -> None:
    """Every step, with engines that are stopped at the end."""

    async def measure(url: str, spec: RunSpec, label: str) -> BenchRun:
        return await measure_with_view(url, spec, label, interrupts)

    async def calibrate(url: str, spec: CalibrateSpec) -> Calibration:
        return await calibrate_with_view(url, spec, interrupts)

    flags = (*shared_gpu_flags(job.engine.device), *job.flags)
    model_of = model_or_quantized(job.model, job.home, _say)
    one_by_one = job.engine.device != "cpu"
    with tempfile.TemporaryDirectory(prefix="phasewise-validate-") as scratch:
        launcher = FleetLauncher(job.home, Path(scratch), model_of, flags, job.size, "validate")
        async with running_engines(launcher.launch, MOST_ENGINES, _say, one_by_one=one_by_one) as engines:
            await run.run(
                ValidationTools(
                    engines=engines,
                    check=lambda: check_environment(job.engine, job.machine),
                    measure=measure,
                    vllm_bench=VllmBench(job.engine.python, job.tokenizer()).run,
                    calibrate=calibrate,
                    say=_say,
                    private=private,
                    stopped=lambda: interrupts.requested,
                    forgives=interrupts.forgives,
                )
            )


def _check_reports(files: Sequence[Path]) -> None:
    """Print each report's line; ConfigError at the first that is wrong."""
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be read ({error.strerror})", hint="give a report's .json file"
            ) from error
        row = markdown_row(read_judged(data, file.name), f"validated/{file.name}")
        _say(f"{file} is a valid report; its line for the page of reports:")
        typer.echo(row)


def _say(words: str) -> None:
    err.print(words, soft_wrap=True, markup=False)

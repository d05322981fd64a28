"""The validation report as a versioned JSON document: what it holds, how it is written and read."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import orjson
from pydantic import Field, StringConstraints, ValidationError

from phasewise.core.errors import ConfigError
from phasewise.experiments.levers.results import LeverEffect
from phasewise.experiments.validate.private import without_addresses
from phasewise.fleet.config.gateway import Frozen

FORMAT = "phasewise-validation"
REPORT_VERSION = 1
LARGEST_REPORT_BYTES = 256 * 1024

Line = Annotated[str, StringConstraints(max_length=600, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]*$")]
"""A text on one line: reports are merged from strangers, and their texts end in tables."""
Key = Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9_]+$")]
Figures = dict[Key, float]


class Outcome(StrEnum):
    """What was found of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    INCONCLUSIVE = "inconclusive"
    NOT_TRIED = "not tried"


class Hardware(Frozen):
    """The machine."""

    processor: Line
    cores: int
    memory_gib: int
    gpus: tuple[Line, ...]
    gpu_memory_mib: tuple[int, ...]
    driver: Line
    system: Line


class Software(Frozen):
    """The versions. An engine without a step recorder has an empty one."""

    phasewise: Line
    python: Line
    vllm: Line
    torch: Line
    engine_python: Line
    step_recorder: Line


class Settings(Frozen):
    """The model and the size of every engine; None is the engine's own choice."""

    model: Line
    device: Line
    cores: int | None
    gpus: int | None
    kv_cache_memory_bytes: Line | None
    context_tokens: int | None
    engine_flags: tuple[Line, ...]
    seed: int
    budget_minutes: float


class StepResult(Frozen):
    """A step of the run; `why` says why it was not done, `notes` what was unusual.

    `taken_share` is what other processes and a hypervisor took of all processors while it ran.
    """

    step: Key
    done: bool
    why: Line = ""
    notes: tuple[Line, ...] = ()
    took_s: float = 0.0
    taken_share: float = 0.0


class BenchFigures(Frozen):
    """Two load generators on one engine: medians in milliseconds, ratios phasewise / vllm, and the noise.

    Noise is how much two runs of the same tool differ, as a logarithm. `void_runs` of phasewise's were late.
    """

    prompt_tokens: int
    output_tokens: int
    concurrency: int
    requests: int
    runs_per_tool: int
    void_runs: int
    phasewise_ms: Figures
    vllm_ms: Figures
    ratio: Figures
    noise: Figures


class CalibrationFigures(Frozen):
    """A fit of step costs: its error on steps that were left out, and whether its form is right."""

    source: Line
    steps: int
    rounds: float
    cost: Figures
    front_end_s: float
    held_out_error: dict[Key, float | None]
    form_fits: bool | None
    cells: int
    cells_missed: int


class FaultFigures(Frozen):
    """Planted traffic and the verdict on it; `late_share` of its requests missed the objective."""

    fault: Key
    expected: Key
    said: Key
    confidence: Line
    traffic: Line
    requests: int
    late_share: float
    objective_ms: Figures
    ttft_p50_ms: float | None
    tpot_p50_ms: float | None
    unexplained_ttft_share: float | None
    unexplained_ttft_ms: float | None
    unexplained_tpot_share: float | None


class LeverFigures(Frozen):
    """A lever off and on, with its effect on each metric."""

    lever: Key
    off: Line
    on: Line
    traffic: Line
    requests: int
    pairs: int
    effects: tuple[LeverEffect, ...]


class Measured(Frozen):
    """All figures of a run; what was not measured is missing."""

    bench: BenchFigures | None = None
    calibration: CalibrationFigures | None = None
    faults: tuple[FaultFigures, ...] = ()
    levers: tuple[LeverFigures, ...] = ()

    def fault(self, name: str) -> FaultFigures | None:
        """The figures of a planted fault."""
        return next((it for it in self.faults if it.fault == name), None)

    def lever(self, name: str) -> LeverFigures | None:
        """The figures of a lever."""
        return next((it for it in self.levers if it.lever == name), None)


class ClaimResult(Frozen):
    """A published claim and what was found of it here."""

    claim: Key
    sentence: Line
    published: Line
    outcome: Outcome
    found: Line


class ValidationReport(Frozen):
    """A whole report."""

    format: Line = FORMAT
    v: int = REPORT_VERSION
    day: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$")]
    took_minutes: float
    interrupted: bool
    hardware: Hardware
    software: Software
    settings: Settings
    steps: tuple[StepResult, ...]
    measured: Measured
    claims: Annotated[tuple[ClaimResult, ...], Field(min_length=1)]

    def count(self, outcome: Outcome) -> int:
        """How many claims have this outcome."""
        return sum(claim.outcome is outcome for claim in self.claims)


def report_json(report: ValidationReport) -> bytes:
    """The document. Whatever its texts hold, no address and no path is written."""
    return orjson.dumps(_cleaned(report.model_dump(mode="json")), option=orjson.OPT_INDENT_2) + b"\n"


def read_report(data: bytes, name: str) -> ValidationReport:
    """The report in a document from anywhere; ConfigError says what is wrong with it."""
    if len(data) > LARGEST_REPORT_BYTES:
        raise ConfigError(
            f"{name} has {len(data):,} bytes: no validation report is this large", hint="give another file"
        )
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{name} is not JSON ({error})", hint="give the .json file of the report"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f"{name} is no validation report", hint="write one with `phasewise engine validate`"
        )
    version = document.get("v")
    if type(version) is not int or version != REPORT_VERSION:
        newer = isinstance(version, int) and version > REPORT_VERSION
        raise ConfigError(
            f"{name} has version {version!r} of the format; this phasewise reads {REPORT_VERSION}",
            hint="update phasewise" if newer else "run `phasewise engine validate` again",
        )
    if _cleaned(document) != document:
        raise ConfigError(
            f"{name} holds an address or a path", hint="publish the report as it was written, without changes"
        )
    try:
        return ValidationReport.model_validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{name}: {where}: {first['msg']}",
            hint="publish the report as it was written, without changes",
        ) from error


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return without_addresses(value)
    if isinstance(value, dict):
        return {key: _cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cleaned(inner) for inner in value]
    return value

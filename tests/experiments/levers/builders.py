"""Plain builders for what is measured of levers."""

from phasewise.experiments.lever_runs.circumstances import Circumstances
from phasewise.experiments.levers.catalogue import SHOWN, Case, EngineSpec, Row, Sign, Workload
from phasewise.experiments.levers.results import (
    CaseResult,
    LeverEffect,
    Outputs,
    PagingResult,
    Results,
    RowResult,
)
from phasewise.fleet.engines.lever_flags import LeverPhase
from phasewise.loadgen.statistics.comparison import MetricVerdict
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.lengths import Lengths
from phasewise.loadgen.workload.plan import PlanSpec
from phasewise.loadgen.workload.presets import Shape

OFF = EngineSpec("base", "the engine as it is")
ON = EngineSpec("lever", "the engine with the lever")


def make_workload(name="few tokens", prompt=40, output=3, least=2, step=1, shared=0):
    shape = Shape(
        about="for tests",
        prompt=Lengths.fixed(prompt),
        output=Lengths.fixed(output),
        shared_prefix_tokens=shared,
        shared_share=1.0 if shared else 0.0,
    )
    plan = PlanSpec(source=shape, load=ClosedLoop(1), requests=1)
    return Workload(name, "for tests", plan, least, step)


def make_row(workload=None, expected=None, *, can_show=True, quick=True):
    expected = {"ttft_p50": Sign.LOWER} if expected is None else expected
    return Row(workload or make_workload(), can_show, expected, "physics", "the machine is small", quick)


def make_case(name="lever", rows=None, **fields):
    rows = (make_row(),) if rows is None else rows
    fields = {
        "lever": name,
        "phase": LeverPhase.PREFILL,
        "title": f"the {name}",
        "off": OFF,
        "on": ON,
    } | fields
    return Case(name=name, rows=rows, **fields)


def make_circumstances(**fields):
    given = {
        "model": "m", "device": "cpu", "processor": "a processor", "cores": 2, "memory_gib": 24, "gpus": (),
        "vllm": "0.32.0", "phasewise": "0.1.0", "effort": "quick", "pairs": 4, "seed": 1,
    }  # fmt: skip
    return Circumstances(**(given | fields))


def make_effect(metric="ttft_p50", verdict=MetricVerdict.BETTER, change=-0.5, low=-0.6, high=-0.4, **fields):
    given = {"off": 1.0, "on": 1.0 + (change or 0.0), "confidence": 0.95}
    return LeverEffect(metric=metric, verdict=verdict, change=change, low=low, high=high, **(given | fields))


def make_measured(*effects, **fields):
    effects = effects or tuple(make_effect(metric) for metric in SHOWN)
    given = {"requests": 4, "pairs": 4, "void_pairs": 0, "remarks": (), "took_s": 1.0, "measured_unix_s": 0.0}
    return RowResult(effects=effects, **(given | fields))


def make_results(*cases, measured=None, outputs=None, **fields):
    measured = measured or make_measured()
    return Results(
        circumstances=make_circumstances(),
        began_unix_s=0.0,
        rows={case.key(row): measured for case in cases for row in case.rows},
        cases={
            case.engines_key: CaseResult(kv_tokens_off=1000, kv_tokens_on=2000, outputs=outputs)
            for case in cases
        },
        **fields,
    )


EQUAL_ANSWERS = Outputs(answers=12, equal=12, sentence="12 of 12 answers equal")
PAGING = PagingResult(
    block_tokens=128, reserved_tokens=8192, samples=40, used_tokens=300, paged_tokens=400,
    paged_waste=0.25, paged_waste_range=(0.1, 0.4), reserved_waste=0.96, reserved_waste_range=(0.9, 0.99),
    fits_paged=116, fits_reserved=5, measured_unix_s=0.0,
)  # fmt: skip

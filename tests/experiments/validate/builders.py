"""Plain builders for validation reports."""

from phasewise.experiments.validate.claims import judge_claims
from phasewise.experiments.validate.plan import Step
from phasewise.experiments.validate.record import (
    BenchFigures,
    CalibrationFigures,
    FaultFigures,
    Hardware,
    LeverFigures,
    Measured,
    Settings,
    Software,
    StepResult,
    ValidationReport,
)
from tests.experiments.levers.builders import make_effect

METRICS = ("ttft", "tpot", "itl", "e2e")


def make_bench(ratio=1.01, noise=0.04, **fields):
    given = {
        "prompt_tokens": 256, "output_tokens": 32, "concurrency": 4, "requests": 32, "runs_per_tool": 4,
        "void_runs": 0, "phasewise_ms": dict.fromkeys(METRICS, 101.0),
        "vllm_ms": dict.fromkeys(METRICS, 100.0), "ratio": dict.fromkeys(METRICS, ratio),
        "noise": dict.fromkeys(METRICS, noise),
    }  # fmt: skip
    return BenchFigures(**(given | fields))


def make_calibration(error=0.07, **fields):
    given = {
        "source": "step record", "steps": 900, "rounds": 4.0, "cost": {"floor_s": 0.05}, "front_end_s": 0.01,
        "held_out_error": {"decode": error, "mixed": error, "prefill": error}, "form_fits": True,
        "cells": 40, "cells_missed": 1,
    }  # fmt: skip
    return CalibrationFigures(**(given | fields))


def make_fault(step=Step.LONG_PROMPTS, said=None, **fields):
    expected = "healthy" if step is Step.HEALTHY else step.value
    given = {
        "fault": step, "expected": expected, "said": said or expected, "confidence": "high",
        "traffic": "prompts of 2,000 tokens", "requests": 20,
        "late_share": 0.0 if step is Step.HEALTHY else 0.9,
        "objective_ms": {"ttft": 800.0, "tpot": 100.0}, "ttft_p50_ms": 300.0, "tpot_p50_ms": 60.0,
        "unexplained_ttft_share": 0.02, "unexplained_ttft_ms": 4.0, "unexplained_tpot_share": 0.001,
    }  # fmt: skip
    return FaultFigures(**(given | fields))


def make_lever(step=Step.PREFIX_CACHE, effect=None):
    metric = "ttft_p50" if step is Step.PREFIX_CACHE else "itl_p99"
    return LeverFigures(
        lever=step, off="off", on="on", traffic="shared prompts", requests=6, pairs=6,
        effects=(effect or make_effect(metric),),
    )  # fmt: skip


def make_measured(**fields):
    faults = (Step.HEALTHY, Step.LONG_PROMPTS, Step.PREFIX_CACHE_OFF, Step.BATCH_CAP)
    given = {
        "bench": make_bench(),
        "calibration": make_calibration(),
        "faults": tuple(map(make_fault, faults)),
        "levers": (make_lever(), make_lever(Step.CHUNK_SIZE)),
    }
    return Measured(**(given | fields))


def make_report(measured=None, steps=None, hardware=None, **fields):
    measured = measured or make_measured()
    steps = tuple(StepResult(step=step, done=True, took_s=10.0) for step in Step) if steps is None else steps
    machine = {
        "processor": "Intel Xeon", "cores": 2, "memory_gib": 24, "gpus": (), "gpu_memory_mib": (),
        "driver": "", "system": "Linux x86_64",
    }  # fmt: skip
    given = {
        "day": "2026-11-17",
        "took_minutes": 21.5,
        "interrupted": False,
        "hardware": Hardware(**(machine | (hardware or {}))),
        "software": Software(
            phasewise="0.1.0", python="3.11.7", vllm="0.32.0", torch="2.13.0", engine_python="3.11.7",
            step_recorder="0.3.0",
        ),
        "settings": Settings(
            model="smollm2-135m", device="cpu", cores=1, gpus=None, kv_cache_memory_bytes=None,
            context_tokens=8192, engine_flags=(), seed=1, budget_minutes=30.0,
        ),
        "steps": steps,
        "measured": measured,
        "claims": judge_claims(measured, steps),
    }  # fmt: skip
    return ValidationReport(**(given | fields))

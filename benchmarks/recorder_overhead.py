"""What the step recorder costs an engine: CPU time of one record() call, with steps as an engine makes them.

Run by the engine's Python it uses vLLM's own statistics classes; otherwise stand-ins of the same shape, and
it says so. The last line is one JSON object.

    $(phasewise engine check --json | jq -r .python) benchmarks/recorder_overhead.py
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from script import command_line

sys.path.insert(0, str(Path(__file__).parents[1] / "engine_plugin"))

RUNNING_REQUESTS = 32
FINISHES_EVERY_STEPS = 4
MIDDLE_CHUNK_EVERY_STEPS = 10
PREPARED_STEPS = 1000


def real_classes() -> SimpleNamespace | None:
    """vLLM's classes, or None where there is no vLLM."""
    try:
        from vllm.v1.engine import FinishReason  # noqa: PLC0415 - only in an engine's environment
        from vllm.v1.metrics import stats  # noqa: PLC0415
    except ImportError:
        return None
    return SimpleNamespace(
        details=stats.SchedulerIterationDetails,
        scheduler=stats.SchedulerStats,
        iteration=stats.IterationStats,
        finished=stats.FinishedRequestStats,
        stop=FinishReason.STOP,
    )


def stand_in_classes() -> SimpleNamespace:
    """Objects with the same attributes, and a stand-in for the base class where the plugin imports it."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        sys.modules[name] = ModuleType(name)
    sys.modules[loggers.__name__] = loggers
    return SimpleNamespace(
        details=SimpleNamespace,
        scheduler=SimpleNamespace,
        iteration=lambda: SimpleNamespace(iteration_timestamp=time.time()),
        finished=SimpleNamespace,
        stop="stop",
    )


def make_step(classes: SimpleNamespace, number: int) -> tuple[Any, Any]:
    """Scheduler and iteration statistics of one step of a busy engine."""
    details = classes.details(
        iteration_index=number,
        num_ctx_requests=1,
        num_ctx_tokens=512,
        num_generation_requests=RUNNING_REQUESTS - 1,
        num_generation_tokens=RUNNING_REQUESTS - 1,
        elapsed_ms=0.8,
    )
    scheduler = classes.scheduler(
        num_running_reqs=RUNNING_REQUESTS,
        num_waiting_reqs=3,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=0.61,
        iteration_details=details,
    )
    if number % MIDDLE_CHUNK_EVERY_STEPS == 0:
        return scheduler, None
    iteration = classes.iteration()
    iteration.num_preempted_reqs = 0
    iteration.time_to_first_tokens_iter = [0.4]
    iteration.finished_requests = []
    if number % FINISHES_EVERY_STEPS == 0:
        iteration.finished_requests = [make_finished(classes, f"chatcmpl-{number}") for _ in range(2)]
    return scheduler, iteration


def make_finished(classes: SimpleNamespace, request_id: str) -> Any:  # noqa: ANN401 - vLLM's or a stand-in
    """One finished request."""
    return classes.finished(
        finish_reason=classes.stop,
        request_id=request_id,
        e2e_latency=4.2,
        num_prompt_tokens=900,
        num_preemptions=0,
        num_generation_tokens=120,
        queued_time=0.02,
        prefill_time=0.4,
        decode_time=3.7,
        num_cached_tokens=512,
    )


def measure(classes: SimpleNamespace, steps: int) -> list[float]:
    """Microseconds of CPU time of every single call; the clock reading is in it too."""
    from phasewise_engine_plugin.recorder import StepRecorder  # noqa: PLC0415 - after the base class

    recorder = StepRecorder(SimpleNamespace(), 0)
    prepared = [make_step(classes, number) for number in range(PREPARED_STEPS)]
    readings_us: list[float] = []
    for number in range(steps):
        scheduler, iteration = prepared[number % PREPARED_STEPS]
        started_ns = time.thread_time_ns()
        recorder.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
        readings_us.append((time.thread_time_ns() - started_ns) / 1000)
    return readings_us


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__, quick="fewer steps")
    arguments = parser.parse_args()
    # The measured thing is the recorder alone; its server is not asked anything here.
    os.environ["PHASEWISE_STEPS_ADDR"] = "off"
    steps = 20_000 if arguments.quick else 200_000
    classes, kind = real_classes(), "vllm"
    if classes is None:
        classes, kind = stand_in_classes(), "stand-in"
        print("no vLLM in this Python: stand-ins of the same shape are used", file=sys.stderr)
    gc.collect()
    readings_us = sorted(measure(classes, steps))
    result = {
        "us_per_step_p50": round(readings_us[len(readings_us) // 2], 2),
        "us_per_step_p99": round(readings_us[int(len(readings_us) * 0.99)], 2),
        "steps": steps,
        "classes": kind,
    }
    if not arguments.json:
        print(f"{steps} steps, {RUNNING_REQUESTS} running, two finish in every {FINISHES_EVERY_STEPS}th step")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

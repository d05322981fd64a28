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


def apply() -> None:
    """Apply every fix that fits this process, where PHASEWISE_FIXES asks for them: the recorder alone changes
    nothing. vLLM may call this more than once.
    """
    if os.environ.get("PHASEWISE_FIXES", "").strip().lower() != "on":
        return
    for fix in (silence_iteration_log, keep_worker_unpinned, calm_nixl_progress):
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
    if not _on_cpu():
        return
    loaded = [module for name, module in list(sys.modules.items()) if _NIXL_BINDINGS.fullmatch(name)]
    for module in loaded:
        _delay_progress(module)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(_NIXL_BINDINGS, _delay_progress))


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


class _AfterImport:
    """An import hook that runs `fix` on the modules whose names match, right after they are loaded."""

    def __init__(self, names: re.Pattern[str], fix: Callable[[ModuleType], None]) -> None:
        self._names = names
        self._fix = fix
        self._searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._searching or not self._names.fullmatch(name):
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
                logger.warning("phasewise: the NIXL fix does not fit and is skipped: %r", error)

        loader.exec_module = _execute_and_fix

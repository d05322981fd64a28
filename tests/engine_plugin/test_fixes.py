"""Fixes fit themselves to what is there and never stop an engine from starting."""

import importlib
import logging
import sys
from random import Random
from types import ModuleType, SimpleNamespace

import pytest
from phasewise_engine_plugin import fixes


@pytest.fixture
def fake_vllm(monkeypatch):
    """As much of vLLM as the fixes touch, on the CPU platform, where the fixes are asked for."""
    monkeypatch.setenv("PHASEWISE_FIXES", "on")

    class LoggingStatLogger:
        def _log_iteration_details(self, scheduler_stats, engine_idx):
            raise AssertionError("a line per step")

    class CpuPlatform:
        @classmethod
        def discover_numa_topology(cls):
            return [[0, 1]]

    class GPUModelRunner:
        """Draws a number for each seeded request, and sets a generator back that has no offset."""

        def __init__(self, generators, discarded):
            self.input_batch = SimpleNamespace(generators=generators, num_reqs=len(discarded))
            self.discard_request_mask = SimpleNamespace(np=[*discarded, True])

        def _sample(self):
            return [generator.random() for generator in self.input_batch.generators.values()]

        def _bookkeeping_sync(self):
            for generator in self.input_batch.generators.values():
                generator.set_offset(generator.get_offset() - 4)

    modules = {
        "vllm": {},
        "vllm.v1": {},
        "vllm.v1.metrics": {},
        "vllm.v1.metrics.loggers": {"LoggingStatLogger": LoggingStatLogger},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.platforms.cpu": {"CpuPlatform": CpuPlatform},
        "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return SimpleNamespace(
        logger=LoggingStatLogger,
        cpu=CpuPlatform,
        platforms=sys.modules["vllm.platforms"],
        runner=GPUModelRunner,
    )


class CpuGenerator(Random):
    """A generator of random numbers that can be saved and restored, and has no offset."""

    get_state, set_state = Random.getstate, Random.setstate


@pytest.fixture
def fake_nixl(tmp_path, monkeypatch):
    """A package named and shaped like NIXL's bindings."""
    package = tmp_path / "nixl_fake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_bindings.py").write_text(
        "def nixlAgent(name, config):\n    return (name, config.pthrDelay)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: importlib.import_module("nixl_fake._bindings")
    for name in ("nixl_fake", "nixl_fake._bindings"):
        sys.modules.pop(name, None)


def test_all_fixes_apply_and_may_be_applied_twice(fake_vllm, fake_nixl, caplog):
    fixes.apply()
    fixes.apply()
    assert fake_vllm.logger()._log_iteration_details("stats", engine_idx=0) is None
    assert fake_vllm.cpu.discover_numa_topology() == []
    assert fake_nixl().nixlAgent("a", SimpleNamespace(pthrDelay=0)) == ("a", 1000)
    assert caplog.records == []


def test_a_delay_that_somebody_chose_is_kept(fake_vllm, fake_nixl):
    fixes.apply()
    assert fake_nixl().nixlAgent("a", SimpleNamespace(pthrDelay=50)) == ("a", 50)


def test_nixl_that_is_loaded_already_is_fixed_too(fake_vllm, fake_nixl):
    bindings = fake_nixl()
    fixes.apply()
    assert bindings.nixlAgent("a", SimpleNamespace(pthrDelay=0)) == ("a", 1000)


def test_only_the_draws_of_discarded_tokens_are_undone(fake_vllm):
    fixes.apply()
    fixes.apply()
    seeded = {0: CpuGenerator(1), 1: CpuGenerator(2)}
    runner = fake_vllm.runner(seeded, discarded=[True, False])
    first, second = runner._sample(), runner._sample()
    runner._bookkeeping_sync()
    assert (first[0], first[1]) == (second[0], CpuGenerator(2).random())
    assert second[1] != first[1]
    assert runner.input_batch.generators is seeded


def test_with_a_gpu_only_the_log_is_silenced(fake_vllm, fake_nixl):
    fake_vllm.platforms.current_platform = SimpleNamespace(is_cpu=lambda: False)
    sample = fake_vllm.runner._sample
    fixes.apply()
    assert fake_vllm.runner._sample is sample
    assert fake_vllm.cpu.discover_numa_topology() == [[0, 1]]
    assert fake_nixl().nixlAgent("a", SimpleNamespace(pthrDelay=0)) == ("a", 0)


def test_a_changed_vllm_costs_one_line_and_the_other_fixes_still_apply(fake_vllm, caplog):
    del fake_vllm.logger._log_iteration_details
    with caplog.at_level(logging.WARNING):
        fixes.apply()
    assert fake_vllm.cpu.discover_numa_topology() == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "silence_iteration_log" in caplog.text


@pytest.mark.parametrize("asked", [None, "", "off"])
def test_the_recorder_changes_nothing_unless_fixes_are_asked_for(fake_vllm, fake_nixl, monkeypatch, asked):
    monkeypatch.delenv("PHASEWISE_FIXES")
    if asked is not None:
        monkeypatch.setenv("PHASEWISE_FIXES", asked)
    before = dict(vars(fake_vllm.logger)), dict(vars(fake_vllm.cpu)), list(sys.meta_path)
    fixes.apply()
    assert (dict(vars(fake_vllm.logger)), dict(vars(fake_vllm.cpu)), sys.meta_path) == before
    assert fake_nixl().nixlAgent("a", SimpleNamespace(pthrDelay=0)) == ("a", 0)

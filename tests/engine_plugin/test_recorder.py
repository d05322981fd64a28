"""The recorder stores a step per call and never raises into the engine."""

import importlib
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from vllm_stand_ins import make_details, make_iteration_stats, make_nixl_stats, make_scheduler_stats


@pytest.fixture
def recorder_module(monkeypatch):
    """The recorder's module over a stand-in for vLLM's base class, not serving."""
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["vllm.v1.metrics.loggers"], "StatLoggerBase", object, raising=False)
    monkeypatch.setenv("PHASEWISE_STEPS_ADDR", "off")
    monkeypatch.delitem(sys.modules, "phasewise_engine_plugin.recorder", raising=False)
    yield importlib.import_module("phasewise_engine_plugin.recorder")
    sys.modules.pop("phasewise_engine_plugin.recorder", None)


WITH_DETAILS = SimpleNamespace(observability_config=SimpleNamespace(enable_logging_iteration_details=True))


def held(module):
    return [step for _, step in module._ring.since(0, 100)]


def test_engines_of_one_process_share_a_ring(recorder_module):
    for index in (0, 1):
        recorder = recorder_module.StepRecorder(SimpleNamespace(), index)
        recorder.record(make_scheduler_stats(make_details()), make_iteration_stats())
    assert [step[1] for step in held(recorder_module)] == [0, 1]


def test_call_without_any_statistics_is_no_step(recorder_module):
    recorder_module.StepRecorder(SimpleNamespace()).record(None, None)
    assert held(recorder_module) == []


def test_load_is_carried_over_steps_that_do_not_report_it(recorder_module):
    recorder = recorder_module.StepRecorder(SimpleNamespace())
    recorder.record(make_scheduler_stats(running=5, waiting=2, kv=0.5), None)
    recorder.record(None, make_iteration_stats())
    assert held(recorder_module)[1][7:10] == (5, 2, 0.5)


def test_statistics_of_another_shape_end_the_recording_not_the_engine(recorder_module, caplog):
    recorder = recorder_module.StepRecorder(SimpleNamespace())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            recorder.record(SimpleNamespace(renamed=1), None, engine_idx=0, something_new=True)
    assert held(recorder_module) == []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("size", ["0", "many"])
def test_ring_size_that_cannot_be_falls_back_to_the_default(recorder_module, monkeypatch, size, caplog):
    monkeypatch.setenv("PHASEWISE_STEPS_RING", size)
    recorder_module.StepRecorder(SimpleNamespace())
    assert recorder_module._ring.capacity == 65_536
    assert "PHASEWISE_STEPS_RING" in caplog.text


def test_details_flag_is_read_from_the_engines_configuration(recorder_module):
    assert recorder_module._has_details(WITH_DETAILS) is True
    assert recorder_module._has_details(SimpleNamespace()) is False


def test_of_many_looks_at_awaited_kv_the_first_and_the_last_are_kept(recorder_module, monkeypatch):
    now_s = iter(range(1000, 2000))
    monkeypatch.setattr(recorder_module.time, "time", lambda: float(next(now_s)))
    recorder = recorder_module.StepRecorder(WITH_DETAILS)
    for _ in range(500):
        recorder.record(make_scheduler_stats(running=0, deferred=1), None)
    recorder.record(make_scheduler_stats(make_details()), make_iteration_stats(at=1499.5))
    assert [step[0] for step in held(recorder_module)] == [1000.0, 1499.0, 1499.5]


def test_look_that_saw_something_new_is_kept(recorder_module):
    recorder = recorder_module.StepRecorder(WITH_DETAILS)
    arrived = make_nixl_stats([0.01], [1_000])
    recorder.record(make_scheduler_stats(running=0, deferred=1), None)
    recorder.record(make_scheduler_stats(running=0, deferred=2), None)
    recorder.record(make_scheduler_stats(running=0, deferred=2, kv_connector_stats=arrived), None)
    recorder.record(make_scheduler_stats(running=0), None)
    assert [(step[8], len(step[-1])) for step in held(recorder_module)] == [(1, 0), (2, 0), (2, 1), (0, 0)]


def test_without_details_nobody_knows_a_look_from_a_chunk_and_all_are_kept(recorder_module):
    recorder = recorder_module.StepRecorder(SimpleNamespace())
    for _ in range(5):
        recorder.record(make_scheduler_stats(running=1), None)
    assert len(held(recorder_module)) == 5

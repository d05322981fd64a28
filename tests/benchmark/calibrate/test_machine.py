from __future__ import annotations

import pytest

from phasewise.benchmark.calibrate import machine
from phasewise.benchmark.calibrate.machine import Devices, NumberFormat, check_given, find_machine
from phasewise.core.errors import ConfigError
from phasewise.costs.fit.step import decoding, prefilling
from tests.paths import ROOT

MEASURED = machine.core_flops_per_s
MODELS = ROOT / "examples" / "models"
HERE, ELSEWHERE = "http://127.0.0.1:8000", "http://10.0.0.5:8000"


@pytest.fixture
def config():
    return str(MODELS / "llama-3-8b.json")


@pytest.fixture(autouse=True)
def a_core_that_reads_8_gb_per_s(monkeypatch):
    monkeypatch.setattr(machine, "core_read_bytes_per_s", lambda: 8e9)
    monkeypatch.setattr(machine, "core_flops_per_s", lambda: 80e9)
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: ())


def test_devices_that_are_named_read_at_their_peak_together(config, tmp_path):
    one, two = (find_machine(ELSEWHERE, config, Devices("H100", count), tmp_path) for count in (1, 2))
    assert two.read_bytes_per_s == 2 * one.read_bytes_per_s
    assert one.weights_read_s == pytest.approx(one.weight_bytes / one.read_bytes_per_s)
    assert "2 x" in two.source


def test_an_engine_on_this_machine_without_a_gpu_reads_as_a_core_does(config, tmp_path):
    found = find_machine(HERE, config, Devices(), tmp_path)
    assert found.read_bytes_per_s == 8e9
    assert "8 GB/s, measured" in found.source


def test_nothing_is_said_about_an_unknown_machine(config, tmp_path, monkeypatch):
    assert find_machine(ELSEWHERE, config, Devices(), tmp_path) is None
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: (0,))
    assert find_machine(HERE, config, Devices(), tmp_path) is None


@pytest.mark.parametrize("model", [None, "/nowhere/model", "some/hub-model"])
def test_a_model_whose_configuration_is_elsewhere_leaves_the_floor_whole(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_machine(HERE, model, Devices("H100", 1), tmp_path) is None


def test_what_was_given_and_cannot_be_used_is_rejected(config, tmp_path):
    check_given("H100", config, tmp_path)
    check_given(None, None, tmp_path)
    with pytest.raises(ConfigError, match="abacus") as caught:
        check_given("abacus", None, tmp_path)
    assert "H100" in caught.value.hint
    with pytest.raises(ConfigError, match="there is no"):
        check_given(None, str(tmp_path / "config.json"), tmp_path)


def test_a_prompt_keeps_the_math_busy_and_a_stream_the_memory(config, tmp_path):
    found = find_machine(ELSEWHERE, config, Devices("H100", 1), tmp_path)
    weights_s = found.weights_read_s
    prefill = found.busy(prefilling(4096), 0.2)
    decode = found.busy(decoding([256]), 1.5 * weights_s)
    assert prefill.math > 0.3
    assert prefill.memory < 0.1
    assert decode.memory == pytest.approx(1 / 1.5, rel=0.05)
    assert decode.math < 0.01


def test_numbers_of_twice_the_size_take_twice_as_long_to_read(config, tmp_path):
    half, whole = (
        find_machine(HERE, config, Devices(element_bytes=it.element_bytes), tmp_path)
        for it in (NumberFormat.SIXTEEN_BIT, NumberFormat.FLOAT32)
    )
    assert whole.weights_read_s == pytest.approx(2 * half.weights_read_s)
    assert whole.busy(decoding([256]), 1.0).math == half.busy(decoding([256]), 1.0).math


def test_a_cores_arithmetic_is_measured():
    assert MEASURED() > 1e9

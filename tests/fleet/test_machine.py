from __future__ import annotations

import pytest

from phasewise.fleet import machine
from phasewise.fleet.machine import gpu_names, visible_gpus

DRIVER = """#!/bin/sh
echo "GPU 0: NVIDIA L4 (UUID: GPU-1f2e)"
echo "  MIG 1g.6gb Device 0: (UUID: MIG-77)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-3c4d)"
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver that lists two GPUs."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(DRIVER)
    tool.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda name: str(tool))


@pytest.mark.usefixtures("driver")
def test_all_gpus_that_the_driver_lists_are_ours_unless_somebody_chose():
    assert visible_gpus({}) == (0, 1)
    assert gpu_names({}) == ("NVIDIA L4", "NVIDIA H100 80GB HBM3")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == (1,)
    assert gpu_names({"CUDA_VISIBLE_DEVICES": "1"}) == ("NVIDIA H100 80GB HBM3",)


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert visible_gpus({}) == ()
    assert gpu_names({}) == ()

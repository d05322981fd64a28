from __future__ import annotations

import pytest

from phasewise.fleet.local import placement as machine
from phasewise.fleet.local.placement import (
    gpu_memory_and_driver,
    gpu_names,
    has_native_bf16,
    this_machine,
    visible_gpus,
)

DRIVER = """#!/bin/sh
echo "GPU 0: NVIDIA L4 (UUID: GPU-1f2e)"
echo "  MIG 1g.6gb Device 0: (UUID: MIG-77)"
echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-3c4d)"
"""


X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx512f {}\nvmx flags\t: vnmi\n"
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd i8mm {}\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("cpu_info", "native"),
    [
        (X86.format("avx512_vnni"), False),
        (X86.format("avx512_bf16"), True),
        (X86.format("amx_bf16 amx_tile"), True),
        (ARM.format("dotprod"), False),
        (ARM.format("bf16 dgh"), True),
        (ARM.format("svebf16"), False),
        ("processor\t: 0\nisa\t\t: rv64imafdc\n", None),
        ("", None),
    ],
)
def test_a_processor_has_native_bfloat16_if_its_flags_say_so(cpu_info, native):
    assert has_native_bf16(cpu_info) is native


def test_where_the_processor_cannot_be_read_nothing_is_known_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "missing")
    assert this_machine("cpu").native_bf16 is None
    (tmp_path / "missing").write_text(X86.format("avx512_vnni"))
    assert this_machine("cpu").native_bf16 is False


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


def test_the_driver_lists_memory_and_its_version_of_the_visible_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    listed = "echo 'GPU 0: NVIDIA L4 (UUID: x)'; echo 'GPU 1: NVIDIA L4 (UUID: y)'"
    rows = "echo '23034, 535.104.05'; echo '24576, 535.104.05'"
    tool.write_text(f'#!/bin/sh\nif [ "$1" = -L ]; then {listed}; else {rows}; fi\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert gpu_memory_and_driver({}) == ((23034, 24576), "535.104.05")
    assert gpu_memory_and_driver({"CUDA_VISIBLE_DEVICES": "1"}) == ((24576,), "535.104.05")
    tool.unlink()
    assert gpu_memory_and_driver({}) == ((), "")

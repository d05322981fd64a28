"""The peak figures of devices, each with its source, and which share of them is assumed to be reached.

Peaks are without sparsity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Self

from phasewise.core.errors import UsageError
from phasewise.costs.roofline.precision import Arithmetic

MIB = 1 << 20
PRICE_SOURCE = "assumption: about what rented devices cost; --price-per-hour sets yours"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device; `link_bytes_per_s` is what it sends, one way, to the `linked_devices` of its host.

    In a mesh each neighbour has its own link, so fewer neighbours use a part of the bandwidth; a switch gives
    all of it to any. `chunk_tokens` and `max_num_seqs` are the defaults of vLLM's server on this device.
    """

    name: str
    peak_flops: Mapping[Arithmetic, float]
    bandwidth_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    price_per_hour: float
    linked_devices: int = 8
    is_mesh: bool = False
    chunk_tokens: int = 2048
    max_num_seqs: int = 256
    sources: Mapping[str, str] = field(default_factory=dict)

    def arithmetic_for(self, wanted: Arithmetic) -> Arithmetic:
        """The units in use: those for 16 bit where the device has none for the wanted type."""
        return wanted if wanted in self.peak_flops else Arithmetic.SIXTEEN_BIT

    def link_among(self, gpus: int) -> float:
        """Bytes per second that a device sends to the others of a group."""
        neighbours = self.linked_devices - 1
        used = min(gpus - 1, neighbours) / neighbours if self.is_mesh else 1.0
        return self.link_bytes_per_s * used


def served_by_default(memory_bytes: float) -> tuple[int, int]:
    """The defaults of vLLM's server for tokens per step and running requests on a device with this memory."""
    if memory_bytes >= 160 * 2**30:
        return 16_384, 1024
    return (8192, 1024) if memory_bytes >= 70 * 2**30 else (2048, 256)


def _sources(
    data_sheet: str, link: str, memory: str = "what the driver reports (nvidia-smi)"
) -> dict[str, str]:
    return {
        "peak_flops": f"{data_sheet}; dense, without sparsity",
        "bandwidth_bytes_per_s": data_sheet,
        "memory_bytes": memory,
        "link_bytes_per_s": f"{data_sheet}; {link}",
        "price_per_hour": PRICE_SOURCE,
    }


def _peaks(sixteen_bit: float, int8: float, fp8: float | None) -> dict[Arithmetic, float]:
    peaks = {Arithmetic.SIXTEEN_BIT: sixteen_bit * 1e12, Arithmetic.INT8: int8 * 1e12}
    return peaks if fp8 is None else peaks | {Arithmetic.FP8: fp8 * 1e12}


ACCELERATORS: Mapping[str, Accelerator] = {
    "H100": Accelerator(
        name="NVIDIA H100 SXM 80 GB",
        peak_flops=_peaks(989.4, 1978.9, 1978.9),
        bandwidth_bytes_per_s=3.35e12,
        memory_bytes=81_559 * MIB,
        link_bytes_per_s=450e9,
        price_per_hour=2.50,
        chunk_tokens=8192,
        max_num_seqs=1024,
        sources=_sources("NVIDIA H100 data sheet", "half of NVLink's 900 GB/s, which counts both ways"),
    ),
    "A100": Accelerator(
        name="NVIDIA A100 SXM 80 GB",
        peak_flops=_peaks(312, 624, None),
        bandwidth_bytes_per_s=2.039e12,
        memory_bytes=81_920 * MIB,
        link_bytes_per_s=300e9,
        price_per_hour=1.50,
        sources=_sources("NVIDIA A100 data sheet", "half of NVLink's 600 GB/s, which counts both ways"),
    ),
    "L40S": Accelerator(
        name="NVIDIA L40S 48 GB",
        peak_flops=_peaks(362.05, 733, 733),
        bandwidth_bytes_per_s=864e9,
        memory_bytes=46_068 * MIB,
        link_bytes_per_s=32e9,
        price_per_hour=1.00,
        sources=_sources("NVIDIA L40S data sheet", "half of PCIe Gen4 x16's 64 GB/s; there is no NVLink"),
    ),
    "MI300X": Accelerator(
        name="AMD Instinct MI300X 192 GB",
        peak_flops=_peaks(1307.4, 2614.9, 2614.9),
        bandwidth_bytes_per_s=5.3e12,
        memory_bytes=196_592 * MIB,
        link_bytes_per_s=448e9,
        price_per_hour=2.00,
        is_mesh=True,
        chunk_tokens=16_384,
        max_num_seqs=1024,
        sources=_sources(
            "AMD Instinct MI300X data sheet",
            "half of seven Infinity Fabric links' 896 GB/s, one link to each neighbour",
            "what the driver reports (rocm-smi)",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumed shares of a device's peaks, and other costs of a step; users can change all of them."""

    compute: float = 0.55
    bandwidth: float = 0.75
    link: float = 0.60
    memory: float = 0.92
    reserve_gb: float = 3.0
    allreduce_us: float = 10.0
    overhead_ms: float = 0.5

    def with_values(self, given: Mapping[str, float]) -> Self:
        """A copy with some values replaced by name."""
        known = {each.name for each in fields(self)}
        for name, value in given.items():
            if name not in known:
                raise UsageError(f"unknown assumption {name!r}", hint=f"accepted: {', '.join(sorted(known))}")
            if not isfinite(value):
                raise UsageError(f"{name} is {value:g}", hint="use a finite number")
            if name in _SHARES and not 0 < value <= 1:
                raise UsageError(f"{name} is {value:g}", hint="it is a share: use above 0, at most 1")
            if value < 0:
                raise UsageError(f"{name} is {value:g}", hint="use 0 or more")
        return replace(self, **given)


ASSUMED = Assumptions()

_SHARES = frozenset({"compute", "bandwidth", "link", "memory"})

ASSUMPTION_MEANINGS: Mapping[str, str] = {
    "compute": "share of peak arithmetic that large matrix products reach",
    "bandwidth": "share of peak memory bandwidth that reads reach",
    "link": "share of the link's bandwidth that all-reduces reach",
    "memory": "share of memory for the engine (vLLM's default 0.92)",
    "reserve_gb": "GB per device for activations and captured graphs",
    "allreduce_us": "microseconds of latency per all-reduce",
    "overhead_ms": "milliseconds per step for scheduling and launching",
}

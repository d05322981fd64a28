"""The loads that gateways are measured under, and what one run of one load tells.

What the rows add up to is figures.py's and the script's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .arms import API_KEY, Arm
from .tools import Tools

SETTLE_S = 0.2
"""After a load has left, its last connections are still being closed: that work belongs to it."""
MARGIN_S = 60.0
NOTHING_CAME = {"all_ok": 0, "all_chunks": 0, "req_s": 0.0, "chunks_s": 0.0, "errors": 1}


@dataclass(frozen=True, slots=True)
class Load:
    """One way to use a gateway: how the upstream paces its chunks, and what the load generator does.

    `ramp_us` is the pause between the first requests of two connections; `most_requests` ends a run early.
    """

    name: str
    connections: int
    seconds: float
    warm_s: float = 0.5
    interval_us: int = 0
    prompt_bytes: int = 512
    stream_tokens: int | None = None
    ramp_us: int = 0
    most_requests: int | None = None

    @property
    def arguments(self) -> list[str]:
        """For the load generator."""
        said = ["-c", str(self.connections), "-d", f"{self.seconds:g}", "--warm", f"{self.warm_s:g}"]
        said += ["--prompt", str(self.prompt_bytes), "--ramp-us", str(self.ramp_us)]
        if self.stream_tokens is not None:
            said += ["--stream", "--tokens", str(self.stream_tokens)]
        if self.most_requests is not None:
            said += ["--n", str(self.most_requests)]
        return said


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a load against an arm, as the load generator and the kernel tell it."""

    arm: str
    load: str
    cpu_s: float
    requests: int
    chunks: int
    requests_per_s: float
    chunks_per_s: float
    errors: int
    ttft_p50_us: float | None
    travel_p50_us: float | None
    travel_p99_us: float | None
    peak_bytes: int = 0

    @property
    def cpu_us_per_request(self) -> float:
        """Of all responses, the warm-up's too."""
        return self.cpu_s * 1e6 / self.requests if self.requests else 0.0

    @property
    def cpu_us_per_chunk(self) -> float:
        """Of all chunks that arrived, the warm-up's too; the requests' own cost is in it."""
        return self.cpu_s * 1e6 / self.chunks if self.chunks else 0.0

    def __str__(self) -> str:
        words = [f"{self.load} {self.arm}: cpu {self.cpu_s:.2f} s"]
        if self.chunks:
            words.append(f"{self.cpu_us_per_chunk:.1f} us/chunk, {self.chunks_per_s:.0f} chunks/s")
            words.append(f"travel p50 {self.travel_p50_us} p99 {self.travel_p99_us} us")
            words.append(f"ttft p50 {self.ttft_p50_us} us")
        else:
            words.append(f"{self.cpu_us_per_request:.1f} us/request, {self.requests_per_s:.0f} requests/s")
        return ", ".join([*words, f"{self.errors} errors"])


class Bench:
    """Runs loads from one core against arms on another."""

    def __init__(self, tools: Tools, core: int) -> None:
        self._tools = tools
        self._core = core

    def run(self, arm: Arm, load: Load, watch: Callable[[], int] | None = None) -> Row:
        """One run; `watch` is asked for a number of bytes twice a second, and the largest is kept."""
        self._pace(load.interval_us)
        before_s = arm.cpu_s
        reported, peak_bytes = self._load(arm, load, watch)
        time.sleep(SETTLE_S)
        return replace(
            _row(arm.name, load.name, reported), cpu_s=round(arm.cpu_s - before_s, 2), peak_bytes=peak_bytes
        )

    def _load(self, arm: Arm, load: Load, watch: Callable[[], int] | None) -> tuple[dict[str, Any], int]:
        command = ["taskset", "-c", str(self._core), self._tools.sseload, "--port", str(arm.port)]
        with subprocess.Popen(
            [*command, "--key", API_KEY, *load.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                peak_bytes = _highest(process, watch)
                out, err = process.communicate(timeout=load.seconds + load.warm_s + MARGIN_S)
            finally:
                process.kill()
        if not out:
            # It could not connect: a row like any other, that nobody will use.
            print(f"{load.name} {arm.name}: {err.strip()}", file=sys.stderr)
        reported: dict[str, Any] = json.loads(out) if out else NOTHING_CAME
        return reported, peak_bytes

    def _pace(self, interval_us: int) -> None:
        """Set the time between two chunks of a stream for all streams to come."""
        url = f"http://127.0.0.1:{self._tools.upstream_port}/fake/set?interval_us={interval_us}&ttft_us=0"
        with urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=5):
            return


def _highest(process: subprocess.Popen[str], watch: Callable[[], int] | None) -> int:
    highest = 0
    while watch is not None and process.poll() is None:
        highest = max(highest, watch())
        time.sleep(0.5)
    return highest


def _row(arm: str, load: str, reported: dict[str, Any]) -> Row:
    return Row(
        arm=arm,
        load=load,
        cpu_s=0.0,
        requests=reported["all_ok"],
        chunks=reported["all_chunks"],
        requests_per_s=reported["req_s"],
        chunks_per_s=reported["chunks_s"],
        errors=reported["errors"],
        ttft_p50_us=reported.get("ttft_us", {}).get("p50"),
        travel_p50_us=reported.get("travel_us", {}).get("p50"),
        travel_p99_us=reported.get("travel_us", {}).get("p99"),
    )

"""Which loads are run, how long and how often: in full, in short, or some of them.

Running them is the script's and limits.py's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from .figures import rising
from .loads import Load

TTFT = "ttft"
"""The one load that is run without a gateway, too."""
MEMORY, MAX_CHUNKS = "memory", "max_chunks"


@dataclass(frozen=True, slots=True)
class Plan:
    """`loads` are run in rounds; `memory` and the offered `rates` of chunks have runs of their own."""

    rounds: int
    loads: tuple[Load, ...]
    memory: Load | None
    rates: tuple[int, ...]
    rate_s: float
    rate_repeats: int

    @property
    def names(self) -> frozenset[str]:
        """Everything that can be asked for."""
        return frozenset({load.name for load in self.loads} | {MEMORY, MAX_CHUNKS})

    def only(self, names: Collection[str]) -> Plan:
        """The same without what is not named."""
        return replace(
            self,
            loads=tuple(load for load in self.loads if load.name in names),
            memory=self.memory if MEMORY in names else None,
            rates=self.rates if MAX_CHUNKS in names else (),
        )


def full_plan(seconds: float, streams: int) -> Plan:
    """Runs in which a gateway uses a second of its core and more: the kernel counts in hundredths."""
    loads = (
        Load("request_1kb", 32, seconds, prompt_bytes=1024),
        Load("request_32kb", 32, seconds, prompt_bytes=32 * 1024),
        Load("request_400kb", 8, seconds, prompt_bytes=400 * 1024),
        Load("chunk", 100, 2 * seconds, interval_us=10_000, stream_tokens=200, ramp_us=100),
        Load("chunk_in_step", 200, 2 * seconds, interval_us=20_000, stream_tokens=1000),
        Load(TTFT, 1, seconds, warm_s=0.2, stream_tokens=4, most_requests=400),
    )
    memory = Load(MEMORY, streams, 6, warm_s=10, interval_us=200_000, stream_tokens=1000, ramp_us=1000)
    return Plan(10, loads, memory, tuple(rising(4000, 80_000, 1.12)), 3.0, 3)


def quick_plan() -> Plan:
    """A short look at everything."""
    loads = (
        Load("request_1kb", 16, 0.5, warm_s=0.2, prompt_bytes=1024),
        Load("request_400kb", 4, 0.5, warm_s=0.2, prompt_bytes=400 * 1024),
        Load("chunk", 20, 0.8, warm_s=0.2, interval_us=10_000, stream_tokens=40, ramp_us=500),
        Load(TTFT, 1, 1, warm_s=0.1, stream_tokens=4, most_requests=40),
    )
    memory = Load(MEMORY, 200, 0.5, warm_s=0.5, interval_us=200_000, stream_tokens=1000, ramp_us=1000)
    return Plan(1, loads, memory, (500, 1000), 0.5, 1)

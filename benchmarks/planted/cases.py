"""The cases: which cause is planted how, what must be said of it, and which sizes each set draws from.

Only facts and pure choices stand here. What a case expects was written before its first judged run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from types import MappingProxyType

HEALTHY = "healthy"
SLO = "ttft=1s,tpot=120ms"
"""What the demo engine meets with margin on one core: a lone short prompt starts within 0.3 s, a stream has a
token every 60 to 75 ms."""

Bounds = tuple[int, int]
Knobs = Mapping[str, Bounds]


class RunSet(StrEnum):
    """Whose runs these are: rules may be changed after a look at the one, never after a look at the other."""

    TUNE = "tune"
    JUDGE = "judge"


class Trouble(StrEnum):
    """What is done to the machine or on the way, beside the traffic."""

    CPU_HOGS = "cpu_hogs"
    SLOW_PROXY = "slow_proxy"
    STOPPED_GENERATOR = "stopped_generator"
    PAUSED_ENGINE = "paused_engine"


@dataclass(frozen=True, slots=True)
class Case:
    """A cause to plant.

    `traffic` are command lines with holes for knobs: `bench` is phasewise's own load generator, all others
    are clients of client.py. Each set has bounds of its own for every knob, and those of `made_by`, the knob
    that makes the cause or the load, have nothing in common: no judged run is as large as one that rules were
    tuned on. `expected` are the causes that count as right, "healthy" being one.
    `by_generator` asks the load generator for the verdict and not the gateway. A `stock` case is judged as if
    the engine had no recorder and there were no gateway: from its counters alone. A `fresh` case needs an
    engine that has served nothing yet.
    """

    name: str
    expected: frozenset[str]
    traffic: tuple[str, ...]
    made_by: str
    tune: Knobs
    judge: Knobs
    levers: str = ""
    replicas: int = 1
    window_s: float = 20.0
    settle_s: float = 5.0
    slo: str = SLO
    trouble: Trouble | None = None
    by_generator: bool = False
    stock: bool = False
    fresh: bool = False

    @property
    def asks_for_logprobs(self) -> bool:
        """Whether its clients do what makes a warm engine cold again unless it was done before."""
        return any(line.startswith("slow_reader") for line in self.traffic)


@dataclass(frozen=True, slots=True)
class Draw:
    """A case with its sizes for one seed."""

    case: Case
    seed: int
    values: Mapping[str, int] = field(default_factory=dict)

    @property
    def traffic(self) -> tuple[str, ...]:
        """The command lines with their holes filled."""
        return tuple(line.format_map(self.values) for line in self.case.traffic)


def draw(case: Case, run_set: RunSet, number: int) -> Draw:
    """The sizes of one run: drawn within the set's bounds by a seed that no other run has."""
    seed = (0 if run_set is RunSet.TUNE else 500_000) + number
    rng = Random(f"{case.name} {seed}")
    knobs = case.tune if run_set is RunSet.TUNE else case.judge
    return Draw(case, seed, MappingProxyType({name: rng.randint(*bounds) for name, bounds in knobs.items()}))


def _one(cause: str) -> frozenset[str]:
    return frozenset({cause})


CASES: tuple[Case, ...] = (
    Case(
        "healthy_closed",
        _one(HEALTHY),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="prompt",
        tune={"clients": (1, 2), "prompt": (60, 130), "output": (24, 48)},
        judge={"clients": (1, 3), "prompt": (140, 190), "output": (28, 64)},
    ),
    Case(
        "healthy_open",
        _one(HEALTHY),
        (
            "bench --rate 0.{rate} --prompt-tokens {prompt} --shared-prefix-tokens {shared} "
            "--output-tokens {output}",
        ),
        made_by="rate",
        tune={"rate": (40, 60), "prompt": (180, 220), "shared": (128, 140), "output": (20, 40)},
        judge={"rate": (62, 75), "prompt": (150, 240), "shared": (128, 136), "output": (16, 32)},
    ),
    Case(
        "long_prompts",
        _one("long_prompts"),
        ("bench --concurrency 1 --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="prompt",
        tune={"prompt": (2300, 2800), "output": (6, 10)},
        judge={"prompt": (2900, 3800), "output": (4, 16)},
    ),
    Case(
        "salted_prompts",
        _one("prefix_salted"),
        ("salted --clients {clients} --shared {shared} --own {own} --output {output}",),
        made_by="shared",
        tune={"clients": (1, 1), "shared": (1500, 1800), "own": (20, 40), "output": (6, 10)},
        judge={"clients": (1, 2), "shared": (1900, 2600), "own": (30, 90), "output": (4, 12)},
    ),
    Case(
        "overload",
        _one("overload"),
        ("bench --rate {rate} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="rate",
        tune={"rate": (7, 8), "prompt": (280, 340), "output": (3, 4)},
        judge={"rate": (9, 10), "prompt": (350, 450), "output": (2, 5)},
    ),
    Case(
        # Answers of three lengths: streams of one length would all end and begin in the same step.
        "many_streams",
        _one("batch_cap_too_high"),
        tuple(
            f"bench --concurrency {{clients}} --prompt-tokens {{prompt}} --output-tokens {{{length}}}"
            for length in ("short", "middle", "long")
        ),
        made_by="clients",
        tune={
            "clients": (32, 34),
            "prompt": (20, 28),
            "short": (90, 100),
            "middle": (125, 135),
            "long": (160, 175),
        },
        judge={
            "clients": (35, 42),
            "prompt": (16, 32),
            "short": (80, 96),
            "middle": (110, 130),
            "long": (150, 190),
        },
        window_s=22.0,
        settle_s=10.0,
    ),
    Case(
        "cpu_hogs",
        _one("engine_starved_of_cpu"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="hogs",
        tune={"clients": (1, 2), "prompt": (60, 100), "output": (20, 32), "hogs": (4, 5)},
        judge={"clients": (1, 3), "prompt": (40, 160), "output": (16, 40), "hogs": (6, 7)},
        window_s=22.0,
        trouble=Trouble.CPU_HOGS,
    ),
    Case(
        "paused_engine",
        _one("engine_pauses"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="stop",
        tune={
            "clients": (2, 3),
            "prompt": (30, 50),
            "output": (60, 80),
            "stop": (1600, 2000),
            "run": (4500, 5500),
        },
        judge={
            "clients": (2, 4),
            "prompt": (20, 80),
            "output": (50, 100),
            "stop": (2200, 2800),
            "run": (4000, 5500),
        },
        window_s=26.0,
        trouble=Trouble.PAUSED_ENGINE,
    ),
    Case(
        "slow_client",
        _one("slow_client"),
        ("slow_reader --clients {clients} --own {own} --output {output} --bytes-per-s {speed}",),
        made_by="speed",
        tune={"clients": (2, 2), "own": (30, 50), "output": (56, 70), "speed": (50_000, 60_000)},
        judge={"clients": (1, 3), "own": (20, 80), "output": (50, 80), "speed": (38_000, 48_000)},
        window_s=26.0,
        settle_s=6.0,
    ),
    Case(
        "slow_proxy",
        _one("network_or_proxy"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="delay",
        tune={"clients": (1, 2), "prompt": (60, 100), "output": (10, 20), "delay": (1200, 1500)},
        judge={"clients": (1, 3), "prompt": (40, 140), "output": (8, 24), "delay": (1600, 2200)},
        trouble=Trouble.SLOW_PROXY,
    ),
    Case(
        "starved_generator",
        _one("generator_lag"),
        ("bench --rate {rate} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="stop",
        tune={"rate": (1, 1), "prompt": (30, 50), "output": (4, 8), "stop": (4500, 5000), "run": (800, 1000)},
        judge={
            "rate": (1, 2),
            "prompt": (20, 80),
            "output": (4, 10),
            "stop": (5200, 6000),
            "run": (700, 1200),
        },
        window_s=26.0,
        trouble=Trouble.STOPPED_GENERATOR,
        by_generator=True,
    ),
    Case(
        # The same sizes as with a recorder: what is asked is whether counters alone are enough.
        "healthy_stock",
        _one(HEALTHY),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="prompt",
        tune={"clients": (1, 2), "prompt": (60, 130), "output": (24, 48)},
        judge={"clients": (1, 3), "prompt": (140, 190), "output": (28, 64)},
        stock=True,
    ),
    Case(
        "long_prompts_stock",
        _one("long_prompts"),
        ("bench --concurrency 1 --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="prompt",
        tune={"prompt": (2300, 2800), "output": (6, 10)},
        judge={"prompt": (2900, 3800), "output": (4, 16)},
        stock=True,
    ),
    Case(
        "huge_chunks",
        _one("prefill_chunks_stall_decodes"),
        (
            "bench --concurrency {streams} --prompt-tokens {prompt} --output-tokens {output}",
            "bench --rate 0.{rate} --spacing constant --prompt-tokens {long} --output-tokens 2",
        ),
        made_by="long",
        tune={
            "streams": (4, 5),
            "prompt": (30, 50),
            "output": (130, 160),
            "rate": (12, 14),
            "long": (2600, 3000),
        },
        judge={
            "streams": (3, 6),
            "prompt": (20, 80),
            "output": (110, 180),
            "rate": (10, 15),
            "long": (3100, 4200),
        },
        levers="max_num_batched_tokens: 8192",
        window_s=26.0,
    ),
    Case(
        "small_chunks",
        _one("chunks_too_small"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="prompt",
        tune={"clients": (1, 1), "prompt": (500, 600), "output": (8, 12)},
        judge={"clients": (1, 2), "prompt": (620, 900), "output": (6, 16)},
        levers="max_num_batched_tokens: 16, max_num_seqs: 16",
    ),
    Case(
        "prefix_cache_off",
        _one("prefix_cache_off"),
        (
            "bench --concurrency {clients} --prompt-tokens {prompt} --shared-prefix-tokens {shared} "
            "--output-tokens {output}",
        ),
        made_by="shared",
        tune={"clients": (1, 1), "prompt": (1900, 2100), "shared": (1700, 1800), "output": (6, 10)},
        judge={"clients": (1, 2), "prompt": (2300, 2900), "shared": (1900, 2200), "output": (4, 12)},
        levers="prefix_cache: false",
    ),
    Case(
        "batch_cap_one",
        _one("batch_cap_too_low"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="clients",
        tune={"clients": (5, 6), "prompt": (40, 80), "output": (20, 28)},
        judge={"clients": (7, 9), "prompt": (30, 110), "output": (14, 36)},
        levers="max_num_seqs: 1",
    ),
    Case(
        "tiny_kv_memory",
        _one("kv_memory_exhausted"),
        ("bench --concurrency {clients} --prompt-tokens {prompt} --output-tokens {output}",),
        made_by="clients",
        tune={"clients": (12, 14), "prompt": (300, 350), "output": (70, 90)},
        judge={"clients": (15, 18), "prompt": (220, 420), "output": (60, 110)},
        levers="kv_cache_memory_bytes: 64MiB, max_model_len: 1024",
        window_s=22.0,
    ),
    Case(
        "unpaid_speculation",
        _one("speculation_does_not_pay"),
        ("free_text --clients {clients} --output {output}",),
        made_by="clients",
        tune={"clients": (18, 20), "output": (48, 60)},
        judge={"clients": (21, 26), "output": (40, 80)},
        levers="speculation: {tokens: 24, lookup_max: 1}",
        window_s=22.0,
        settle_s=8.0,
    ),
    Case(
        "scattered_prefixes",
        _one("prefix_scattered"),
        ("pairs --texts {texts} --shared {shared} --own {own} --output {output}",),
        made_by="shared",
        tune={"texts": (2, 2), "shared": (1300, 1500), "own": (20, 30), "output": (4, 6)},
        judge={"texts": (2, 3), "shared": (1600, 2200), "own": (20, 60), "output": (2, 8)},
        replicas=2,
        window_s=22.0,
    ),
    Case(
        # An engine compiles what it needs for logprobs when it is first asked for any, and all others wait.
        "cold_engine",
        _one("cold_start"),
        ("logprobs --clients {clients} --own {own} --output {output}",),
        made_by="clients",
        tune={"clients": (3, 4), "own": (20, 40), "output": (24, 32)},
        judge={"clients": (5, 6), "own": (16, 60), "output": (20, 36)},
        settle_s=0.0,
        fresh=True,
    ),
)

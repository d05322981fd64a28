"""The same causes on virtual engines: three machines, many sizes, every number drawn by a seed.

A scene is sized by its machine: a prompt is long when it takes several times what the objective allows, and
the objective is what the machine meets with ease when nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from random import Random

from phasewise.core.slo import Slo
from phasewise.costs.fit.step import StepCost, StepSeconds, StepWork
from phasewise.diagnosis.evidence import Evidence
from phasewise.experiments.validate.sizes import easy_objective, prefill_s, tokens_taking
from phasewise.fake_engine.jitter import Jitter, JitteredCost
from phasewise.loadgen.workload.prompts import write_text
from phasewise.simulator.engine import EngineShape
from phasewise.simulator.stage import Ask, SlowMachine, Stage, Turn, VirtualHost
from phasewise.simulator.step_times import PRESETS

from .cases import HEALTHY
from .virtual_evidence import Way, watched

TOKENS_PER_WORD = 1.36
"""A fake engine reads four bytes as a token, and an ordinary word with its space has this many."""
SETTLE_STEPS = 400
WINDOW_STEPS = 1200
"""A window is as long as so many lone steps, whatever the machine: a minute on the slowest."""
NOISE = 0.06
CONTEXT_TOKENS = 32_768
PLAIN_WAY = Way()

MACHINES: Mapping[str, StepCost] = {
    # The demo model on a core, as calibrated; a small model on a small GPU; a large one over several large.
    "core": PRESETS["cpu-demo"],
    "small": StepCost(0.011, 256, 5.5e-5, 3.0e-9, 6.0e-8, 1.4e-4),
    "large": StepCost(0.027, 384, 8.0e-5, 1.5e-9, 3.0e-8, 2.2e-4),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is long, short and fast enough on a machine."""

    cost: StepCost
    rng: Random

    @property
    def slo(self) -> Slo:
        """Met with margin by a machine on which nothing is wrong."""
        return easy_objective(self.cost.floor_s)

    def tokens_taking(self, seconds: float) -> int:
        """The prompt that takes so long."""
        return tokens_taking(self.cost, seconds, CONTEXT_TOKENS - 1024)

    def between(self, low: float, high: float) -> float:
        """Any number between two."""
        return self.rng.uniform(low, high)

    def prompt(self, low: float, high: float) -> int:
        """The length of a prompt that takes so many times what its start may take."""
        return self.tokens_taking(self.between(low, high) * self.slo.ttft_s)

    def text(self, tokens: float) -> str:
        """Words that come to about so many tokens."""
        return write_text(max(1, round(tokens / TOKENS_PER_WORD)), self.rng)


@dataclass(slots=True)
class Scene:
    """What is put on the stage; each planter changes what it needs to."""

    sizes: Sizes
    shape: EngineShape
    engines: int = 1
    way: Way = PLAIN_WAY
    share: float = 1.0
    cold: tuple[int, float] = (0, 0.0)
    pause_s: tuple[float, float] | None = None
    clients: int = 0
    turn: Callable[[], Turn] = tuple
    rate_per_s: float = 0.0
    arrival: Callable[[], Ask] | None = None
    lag_s: tuple[float, float] | None = None
    settle_s: float = 0.0
    window_s: float = 0.0
    guesses: int = 0
    rest_s: float = 0.0


def play(cause: str, machine: str, seed: int) -> tuple[Evidence, Slo]:
    """One planted cause on one machine."""
    rng = Random(f"{cause} {machine} {seed}")
    sizes = Sizes(MACHINES[machine], rng)
    scene = Scene(sizes, EngineShape(max_model_len=CONTEXT_TOKENS, total_blocks=2048))
    scene.settle_s = SETTLE_STEPS * sizes.cost.floor_s
    scene.window_s = WINDOW_STEPS * sizes.cost.floor_s
    PLANTERS[cause](scene)
    return _evidence(scene), sizes.slo


def _evidence(scene: Scene) -> Evidence:
    rng = scene.sizes.rng
    hosts = [VirtualHost(scene.shape, _machine(scene), scene.guesses) for _ in range(scene.engines)]
    stage = Stage(hosts)
    ends_s = scene.settle_s + scene.window_s
    for _ in range(scene.clients):
        turns = _forever(scene.turn)
        begins_s = rng.uniform(0, 4 * scene.sizes.cost.floor_s)
        stage.closed_loop(turns, begins_s, scene.way.round_trip_s + scene.rest_s)
    if scene.arrival is not None:
        _arrive(scene, stage, ends_s)
    return watched(stage, scene.way, scene.settle_s, ends_s)


def _machine(scene: Scene) -> SlowMachine:
    rng = scene.sizes.rng
    cost: StepSeconds = scene.sizes.cost
    if scene.guesses:
        cost = _Guessing(scene.sizes.cost, scene.guesses)
    cost = JitteredCost(cost, Jitter(NOISE), rng)
    pauses = []
    if scene.pause_s is not None:
        at_s, (length_s, every_s) = 0.0, scene.pause_s
        while at_s < scene.settle_s + scene.window_s:
            at_s += every_s * rng.uniform(0.8, 1.2)
            pauses.append((at_s, at_s + length_s))
    return SlowMachine(cost, scene.share, *scene.cold, pauses)


@dataclass(frozen=True, slots=True)
class _Guessing:
    """Every stream has so many guesses checked in each of its steps."""

    cost: StepCost
    guesses: int

    def __call__(self, work: StepWork) -> float:
        return self.cost(replace(work, decode_tokens=work.decode_tokens * (1 + self.guesses)))


def _forever(turn: Callable[[], Turn]) -> Iterator[Turn]:
    while True:
        yield turn()


def _arrive(scene: Scene, stage: Stage, ends_s: float) -> None:
    """Requests come at random, whatever the replies do; a stopped generator sends what is due when it may."""
    rng = scene.sizes.rng
    at_s = 0.0
    while at_s < ends_s:
        at_s += rng.expovariate(scene.rate_per_s)
        sent_s = at_s
        if scene.lag_s is not None:
            stop_s, run_s = scene.lag_s
            into_s = at_s % (stop_s + run_s)
            sent_s = at_s if into_s >= stop_s else at_s + stop_s - into_s
        _send_at(scene, stage, at_s, sent_s)


def _send_at(scene: Scene, stage: Stage, due_s: float, sent_s: float) -> None:
    arrival = scene.arrival
    assert arrival is not None
    stage.at(sent_s, lambda now_s: stage.send(arrival(), due_s, now_s))


# --- the planters -----------------------------------------------------------------------------------------


def _plain(scene: Scene, prompt_tokens: float, outputs: tuple[int, int]) -> Callable[[], Turn]:
    rng = scene.sizes.rng
    return lambda: (Ask(scene.sizes.text(prompt_tokens), rng.randint(*outputs)),)


def healthy(scene: Scene) -> None:
    """A few clients with short prompts."""
    scene.clients = scene.sizes.rng.randint(1, 4)
    scene.turn = _plain(scene, scene.sizes.prompt(0.08, 0.2), (16, 64))


def long_prompts(scene: Scene) -> None:
    """One client whose prompts take several times what they may."""
    scene.clients = 1
    scene.turn = _plain(scene, scene.sizes.prompt(1.8, 4.0), (4, 24))


def salted(scene: Scene) -> None:
    """The same long text, behind a head that is never the same."""
    common = scene.sizes.text(scene.sizes.prompt(1.8, 3.5))
    scene.clients = scene.sizes.rng.randint(1, 2)
    scene.turn = lambda: (Ask(f"{scene.sizes.text(16)} {common} {scene.sizes.text(24)}", 8),)


def cache_off(scene: Scene) -> None:
    """Shared beginnings, and an engine that keeps none."""
    scene.shape = replace(scene.shape, prefix_cache=False)
    common = scene.sizes.text(scene.sizes.prompt(1.8, 3.5))
    scene.clients = scene.sizes.rng.randint(1, 2)
    scene.turn = lambda: (Ask(f"{common} {scene.sizes.text(40)}", 8),)


def scattered(scene: Scene) -> None:
    """Two questions about each of several long texts, all at once, to two engines."""
    scene.engines = 2
    tokens = scene.sizes.prompt(1.4, 2.4)
    texts = scene.sizes.rng.randint(2, 3)
    scene.clients = 1

    def burst() -> Turn:
        written = [scene.sizes.text(tokens) for _ in range(texts)]
        return tuple(Ask(f"{text} {scene.sizes.text(24)}", 4) for text in written for _ in range(2))

    scene.turn = burst


def evicted(scene: Scene) -> None:
    """More shared texts in turn than the KV cache holds."""
    tokens = scene.sizes.prompt(1.8, 3.0)
    texts = [scene.sizes.text(tokens) for _ in range(6)]
    blocks = ceil(tokens / scene.shape.block_size)
    scene.shape = replace(scene.shape, max_model_len=2 * tokens + 256, total_blocks=ceil(3.2 * blocks))
    scene.clients = 1
    state = iter(range(10**9))
    scene.turn = lambda: (Ask(f"{texts[next(state) % 6]} {scene.sizes.text(24)}", 6),)


def overload(scene: Scene) -> None:
    """More prompts per second than the engine can compute."""
    tokens = scene.sizes.prompt(0.3, 0.5)
    scene.rate_per_s = scene.sizes.between(1.6, 2.6) / prefill_s(scene.sizes.cost, tokens)
    scene.arrival = lambda: Ask(scene.sizes.text(tokens), scene.sizes.rng.randint(2, 5))


def batch_cap(scene: Scene) -> None:
    """Many clients, and seats for one to three of them."""
    seats = scene.sizes.rng.randint(1, 3)
    scene.shape = replace(scene.shape, max_num_seqs=seats)
    scene.clients = seats * scene.sizes.rng.randint(4, 7)
    scene.turn = _plain(scene, scene.sizes.prompt(0.08, 0.2), (16, 48))


def tiny_kv(scene: Scene) -> None:
    """Room in the KV cache for a few of the clients."""
    tokens = scene.sizes.prompt(0.25, 0.5)
    output = 80
    each = ceil((tokens + output) / scene.shape.block_size)
    scene.shape = replace(
        scene.shape,
        max_model_len=(each + 1) * scene.shape.block_size,
        total_blocks=each * scene.sizes.rng.randint(2, 4) + 1,
    )
    scene.clients = scene.sizes.rng.randint(14, 20)
    scene.turn = _plain(scene, tokens, (output - 20, output))


def huge_chunks(scene: Scene) -> None:
    """Long prompts, uncut, between running streams."""
    scene.shape = replace(scene.shape, max_num_batched_tokens=16_384)
    scene.clients = scene.sizes.rng.randint(5, 8)
    scene.turn = _plain(scene, 40, (140, 220))
    # Long enough to be noticed as a stall, rare enough that the streams' own steps are the rule.
    tokens = scene.sizes.tokens_taking(scene.sizes.between(1.8, 3.0) * 10 * scene.sizes.slo.tpot_s)
    scene.rate_per_s = 1 / (scene.sizes.between(140, 180) * scene.sizes.cost.floor_s)
    scene.arrival = lambda: Ask(scene.sizes.text(tokens), 2)


def small_chunks(scene: Scene) -> None:
    """Prompts cut into pieces so small that every one of them costs as much as a full one."""
    chunk = scene.sizes.rng.choice((16, 24, 32))
    scene.shape = replace(scene.shape, max_num_batched_tokens=chunk, max_num_seqs=chunk)
    scene.clients = 1
    scene.turn = _plain(scene, chunk * 16 * scene.sizes.between(1.8, 3.0), (6, 16))


def many_streams(scene: Scene) -> None:
    """So many streams in a step that each of them is slow."""
    slow_s = scene.sizes.between(1.5, 2.2) * scene.sizes.slo.tpot_s
    streams = 8
    while scene.sizes.cost(StepWork(0, streams, streams, 0, streams * 120)) < slow_s:
        streams += 4
    scene.clients = streams
    scene.shape = replace(scene.shape, max_num_seqs=512)
    scene.turn = _plain(scene, 24, (140, 220))


def cpu_hogs(scene: Scene) -> None:
    """Somebody else has most of the engine's cores."""
    scene.share = scene.sizes.between(0.2, 0.4)
    scene.way = replace(scene.way, wait_share=1 - scene.share)
    scene.clients = scene.sizes.rng.randint(1, 3)
    scene.turn = _plain(scene, scene.sizes.prompt(0.08, 0.2), (16, 48))


def pauses(scene: Scene) -> None:
    """The engine stands still now and then."""
    floor_s = scene.sizes.cost.floor_s
    scene.pause_s = (scene.sizes.between(30, 50) * floor_s, scene.sizes.between(110, 150) * floor_s)
    scene.clients = scene.sizes.rng.randint(2, 4)
    scene.turn = _plain(scene, 40, (120, 180))


def cold(scene: Scene) -> None:
    """An engine that has just started, whose first steps take long, and a look at it while it warms up."""
    steps = scene.sizes.rng.randint(14, 18)
    extra_s = scene.sizes.between(1.0, 1.4) * scene.sizes.slo.ttft_s
    scene.cold = (steps, extra_s)
    scene.way = replace(scene.way, age_s=scene.sizes.between(2, 30))
    scene.clients = scene.sizes.rng.randint(2, 3)
    scene.turn = _plain(scene, scene.sizes.prompt(0.08, 0.15), (2, 4))
    # Long enough to show what is usual, short enough for the first steps to matter.
    scene.settle_s = 0.0
    scene.window_s = steps * extra_s + scene.sizes.between(60, 90) * scene.sizes.cost.floor_s


def slow_proxy(scene: Scene) -> None:
    """Replies take a detour."""
    delay_s = scene.sizes.between(1.2, 3.0) * scene.sizes.slo.ttft_s
    scene.way = replace(scene.way, back_s=delay_s)
    scene.clients = scene.sizes.rng.randint(1, 4)
    scene.turn = _plain(scene, scene.sizes.prompt(0.08, 0.2), (8, 24))


def stopped_generator(scene: Scene) -> None:
    """A load generator that does not get to send."""
    stop_s = scene.sizes.between(4.0, 7.0) * scene.sizes.slo.ttft_s
    scene.lag_s = (stop_s, 0.2 * stop_s)
    scene.way = replace(scene.way, generator=True)
    scene.rate_per_s = 3.0 / stop_s
    tokens = scene.sizes.prompt(0.06, 0.12)
    scene.arrival = lambda: Ask(scene.sizes.text(tokens), scene.sizes.rng.randint(3, 8))


def slow_client(scene: Scene) -> None:
    """Clients that take tokens at a third of the pace at which they come."""
    floor_s = scene.sizes.cost.floor_s
    taken_s = scene.sizes.between(3.0, 5.0) * floor_s
    scene.way = replace(scene.way, taken_s=taken_s)
    scene.clients = scene.sizes.rng.randint(1, 4)
    scene.turn = _plain(scene, 60, (50, 70))
    # Nobody asks again before the last answer was taken.
    scene.rest_s = 60 * (taken_s - floor_s)


def speculation(scene: Scene) -> None:
    """Guesses that are hardly ever right, checked in every step of many streams."""
    scene.guesses = scene.sizes.rng.randint(8, 16)
    slow_s = scene.sizes.between(1.4, 2.2) * scene.sizes.slo.tpot_s
    guessing = _Guessing(scene.sizes.cost, scene.guesses)
    streams = 4
    while guessing(StepWork(0, streams, streams, 0, streams * 80)) < slow_s:
        streams += 1
    scene.clients = streams
    scene.way = replace(scene.way, drafts=(1.0, float(scene.guesses), scene.sizes.between(0.02, 0.15)))
    scene.turn = _plain(scene, 24, (60, 120))


PLANTERS: Mapping[str, Callable[[Scene], None]] = {
    HEALTHY: healthy,
    "long_prompts": long_prompts,
    "prefix_salted": salted,
    "prefix_cache_off": cache_off,
    "prefix_scattered": scattered,
    "prefix_evicted": evicted,
    "overload": overload,
    "batch_cap_too_low": batch_cap,
    "kv_memory_exhausted": tiny_kv,
    "prefill_chunks_stall_decodes": huge_chunks,
    "chunks_too_small": small_chunks,
    "batch_cap_too_high": many_streams,
    "engine_starved_of_cpu": cpu_hogs,
    "engine_pauses": pauses,
    "cold_start": cold,
    "network_or_proxy": slow_proxy,
    "generator_lag": stopped_generator,
    "slow_client": slow_client,
    "speculation_does_not_pay": speculation,
}
"""By the cause that is planted, which is the one that must be named."""

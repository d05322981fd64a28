"""Draws scenes. Tuning and held-out scenes share no cost family, noise, arrivals, pair or unknown fault.

Held-out ranges are wider. Whatever a judged run has shown to the authors of rules is for tuning from then on.

Sizes are relative to the machine's floor and to the objective, so that one range fits every machine. The
neutral traffic of a scene is light; a factor that needs a certain traffic to matter changes it first. Whether
a factor then matters is not decided here but by removal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from random import Random

from phasewise.core.slo import Slo

from .factors import AMPLE_KV_TOKENS, FACTORS
from .held_out import HELD_OUT_ONLY, TUNE_ONLY
from .scene import LEVELS, FactorDraw, Scene, Settings
from .traffic import HELD_OUT_ARRIVALS, TUNE_ARRIVALS, Traffic
from .worlds import (
    HELD_OUT_FAMILIES,
    HELD_OUT_NOISES,
    TUNE_FAMILIES,
    TUNE_NOISES,
    World,
    bend_of,
)

TUNE, HELD_OUT = "tune", "held-out"
WINDOW_S = (20.0, 60.0)
FEWEST_REQUESTS, MOST_REQUESTS = 40, 150
PLAIN_SHARE, HELD_OUT_PLAIN_SHARE = 0.14, 0.23
"""How many scenes have no factor and light traffic. Held-out ones must count false alarms, so they have more.
"""


@dataclass(slots=True)
class Draft:
    """A scene in the making."""

    rng: Random
    held_out: bool
    world: World
    slo: Slo
    traffic: Traffic
    settings: Settings
    engines: int = 1
    settle_steps: int = 200
    window_steps: int = 800

    @property
    def window_s(self) -> float:
        """The usual window of this machine."""
        return self.window_steps * self.world.floor_s

    def between(self, low: float, high: float) -> float:
        """A number from a range; held-out scenes have a wider one."""
        if self.held_out:
            low, high = 0.65 * low, 1.5 * high
        return self.rng.uniform(low, high)

    def whole(self, low: int, high: int) -> int:
        """A whole number from a range, at least 1."""
        return max(1, round(self.between(low, high)))

    def prompt_taking(self, low: float, high: float) -> int:
        """The tokens of a prompt that alone takes so many TTFT objectives."""
        return self.world.tokens_taking(self.between(low, high) * self.slo.ttft_s)

    def load(self, low: float, high: float, streams: int = 16) -> None:
        """Set the rate to a share of what one engine can serve at this batch size."""
        traffic = self.traffic
        prompt = round(traffic.prompt_tokens)
        if traffic.salted or not self.settings.prefix_cache:
            prompt += traffic.shared_tokens
        output = traffic.output_tokens
        each_s = self.world.prefill_s(prompt) + output * self.world.step_s(streams) / streams
        traffic.rate_per_s = self.between(low, high) / each_s

    def concurrency(self, low: float, high: float) -> None:
        """Set the rate so that about so many requests run at a time."""
        wanted = self.between(low, high)
        step_s = self.world.step_s(max(1, round(wanted)))
        self.traffic.rate_per_s = wanted / (self.traffic.output_tokens * step_s)


Sizes = dict[str, float]


def draw_scene(number: int, run_set: str, seed: int, levels: Iterable[str] = LEVELS) -> Scene:
    """Scene `number` of a set."""
    rng = Random(f"{run_set}/{seed}/{number}")
    held_out = run_set == HELD_OUT
    draft = _draft(rng, held_out)
    level = rng.choice([level for level in LEVELS if level in levels])
    names = _choose(rng, held_out, level)
    factors = tuple(FactorDraw(name, PLANTERS[name](draft)) for name in names if name in FACTORS)
    for name in names:
        if name not in FACTORS:
            PLANTERS[name](draft)
    if "chunk_large" in names and "long_tenant" not in names:
        factors = (*factors, FactorDraw("long_tenant", _long_for_stalls(draft)))
    settle_s = draft.settle_steps * draft.world.floor_s
    window_s = _window_s(draft, settle_s)
    return Scene(
        id=f"{run_set}-{seed}-{number}",
        seed=seed,
        level=level,
        world=draft.world,
        traffic=asdict(draft.traffic),
        settings=draft.settings,
        slo=draft.slo,
        settle_s=settle_s,
        window_s=window_s,
        factors=factors,
        engines=draft.engines,
    )


def _window_s(draft: Draft, settle_s: float) -> float:
    """Long enough for some requests, short enough for not too many."""
    rate = draft.traffic.rate_per_s
    wanted_s = max(draft.window_s, FEWEST_REQUESTS / rate)
    return min(WINDOW_S[1], max(WINDOW_S[0], min(wanted_s, MOST_REQUESTS / rate - settle_s)))


def _seen_at(level: str, names: Iterable[str]) -> bool:
    return all(level in FACTORS[name].levels for name in names if name in FACTORS)


def _choose(rng: Random, held_out: bool, level: str) -> tuple[str, ...]:
    if rng.random() < (HELD_OUT_PLAIN_SHARE if held_out else PLAIN_SHARE):
        return ("plain",)
    kind = rng.random()
    if kind < 0.15:
        return (rng.choice(("overload_prompts", "overload_streams", "slow_format", "long_alone")),)
    singles = [name for name in FACTORS if name != "cap_high" and not FACTORS[name].unknown]
    singles += HELD_OUT_ONLY if held_out else TUNE_ONLY
    possible = [
        name for name in singles if level in FACTORS[name].levels for _ in range(_WEIGHT.get(name, 3))
    ]
    if kind < 0.71:
        return (rng.choice(possible),)
    return rng.choice([pair for pair in pairs(held_out) if _seen_at(level, pair)])


_WEIGHT: Mapping[str, int] = {"rejected": 1, "disconnects": 1}
"""How often a factor is drawn alone; these two have little to find."""
_ALONE = frozenset({"cold_start", "uneven", "rejected", "cap_high", "chunk_large"})
_APART = (
    frozenset({"prefix_salted", "prefix_cache_off"}),
    frozenset({"chunk_small", "long_tenant"}),
    frozenset({"cap_low", "kv_small"}),
)
"""Two that need traffic of different kinds, or hide each other altogether."""


def pairs(held_out: bool) -> list[tuple[str, str]]:
    """The pairs of a set: every fourth one is held out."""
    names = [name for name in FACTORS if name not in _ALONE and not FACTORS[name].unknown]
    every = [pair for pair in combinations(names, 2) if frozenset(pair) not in _APART]
    held = every[1::4]
    return held if held_out else [pair for pair in every if pair not in held]


def _draft(rng: Random, held_out: bool) -> Draft:
    draft = Draft(
        rng,
        held_out,
        World("power", 0.03, 8, 0.5, 1, 0.5, 0.9, "lognormal", 0.05),
        Slo(1.0, 0.1),
        Traffic(),
        Settings(kv_tokens=AMPLE_KV_TOKENS, block=rng.choice((16, 32, 128))),
    )
    family = rng.choice(HELD_OUT_FAMILIES if held_out else TUNE_FAMILIES)
    floor_s = draft.between(0.022, 0.05)
    asynchronous = rng.random() < 1 / 3
    draft.world = World(
        family=family,
        floor_s=floor_s,
        prompt_floors=draft.between(4, 12),
        stream_floors=draft.between(0.2, 1.0),
        attention_floors=draft.between(0.3, 1.5),
        context_floors=draft.between(0.2, 0.8),
        bend=bend_of(family, rng),
        noise=rng.choice(HELD_OUT_NOISES if held_out else TUNE_NOISES),
        spread=draft.between(0.03, 0.12),
        asynchronous=asynchronous,
        output_lag_s=rng.uniform(0.1, 0.5) * floor_s if asynchronous else 0.0,
    )
    draft.slo = Slo(ttft_s=rng.uniform(14, 26) * floor_s, tpot_s=rng.uniform(1.7, 2.4) * floor_s)
    _light_traffic(draft)
    return draft


def _light_traffic(draft: Draft) -> None:
    rng = draft.rng
    traffic = draft.traffic
    traffic.arrivals = rng.choice(HELD_OUT_ARRIVALS if draft.held_out else TUNE_ARRIVALS)
    # Held-out ranges are wider at both ends; with these they end about where those for tuning do.
    longest, most = (0.1, 2.0) if draft.held_out else (0.14, 3.0)
    traffic.prompt_tokens = draft.prompt_taking(0.08, longest)
    traffic.prompt_spread = draft.between(0.1, 0.4)
    traffic.output_tokens = draft.between(20, 45)
    traffic.output_spread = draft.between(0.1, 0.5)
    traffic.turns = rng.choice((1, 1, 2, 4, 5) if draft.held_out else (1, 1, 1, 2, 3))
    traffic.think_s = draft.between(20, 60) * draft.world.floor_s
    if rng.random() < 0.3:
        traffic.shared_tokens = draft.prompt_taking(0.1, 0.3)
    if rng.random() < 0.15:
        traffic.leaving_share, traffic.leaving_s = draft.between(0.03, 0.1), 3 * draft.slo.ttft_s
    draft.concurrency(1.0, most)


# --- The planters: the traffic that a factor needs, and its sizes.


def _plain(draft: Draft) -> Sizes:
    return {}


def _overload_prompts(draft: Draft) -> Sizes:
    """More prompts than can be computed."""
    draft.traffic.turns = 1
    draft.traffic.prompt_tokens = draft.prompt_taking(0.3, 0.6)
    draft.traffic.output_tokens = draft.between(6, 16)
    draft.load(1.0, 1.8)
    return {}


def _overload_streams(draft: Draft) -> Sizes:
    """So many streams at a time that each is slow."""
    draft.world = replace(draft.world, stream_floors=draft.between(2.0, 4.0))
    draft.traffic.turns = 1
    draft.traffic.output_tokens = draft.between(80, 140)
    streams = 4
    while draft.world.step_s(streams) < draft.slo.tpot_s * 1.1 and streams < 96:
        streams += 2
    draft.concurrency(0.9 * streams, 1.7 * streams)
    return {}


def _slow_format(draft: Draft) -> Sizes:
    draft.world = replace(draft.world, slower=draft.between(1.8, 3.3))
    draft.traffic.rate_per_s /= 2
    return {}


def _long_alone(draft: Draft) -> Sizes:
    """Every prompt alone takes longer than the objective."""
    draft.traffic.turns = 1
    draft.traffic.prompt_tokens = draft.prompt_taking(0.9, 2.2)
    draft.traffic.output_tokens = draft.between(6, 20)
    draft.load(0.2, 0.5)
    return {}


def _burst(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    draft.traffic.prompt_tokens = draft.prompt_taking(0.12, 0.3)
    return {"every_s": draft.between(6, 20) / draft.traffic.rate_per_s}


def _long_tenant(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    draft.traffic.rate_per_s *= 0.5
    return {"every": draft.whole(3, 6), "tokens": draft.prompt_taking(0.8, 2.2)}


def _long_for_stalls(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    draft.traffic.output_tokens = draft.between(90, 140)
    draft.concurrency(3.0, 5.0)
    tokens = draft.world.tokens_taking(draft.between(1.3, 2.5) * 10 * draft.slo.tpot_s)
    return {"every": draft.whole(8, 14), "tokens": tokens}


def _shared_prompt(draft: Draft) -> None:
    draft.traffic.turns = 1
    draft.traffic.shared_tokens = draft.prompt_taking(0.4, 1.4)
    busy = draft.between(0.2, 0.8)
    each_s = draft.world.prefill_s(draft.traffic.shared_tokens + round(draft.traffic.prompt_tokens))
    draft.traffic.rate_per_s = min(draft.traffic.rate_per_s, busy / each_s)


def _salted(draft: Draft) -> Sizes:
    _shared_prompt(draft)
    return {}


def _cap_low(draft: Draft) -> Sizes:
    draft.concurrency(3.0, 8.0)
    return {"cap": draft.whole(1, 4)}


def _cap_high(draft: Draft) -> Sizes:
    _overload_streams(draft)
    return {"cap": 512}


def _kv_small(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    draft.traffic.prompt_tokens = max(200, draft.prompt_taking(0.1, 0.25))
    draft.traffic.output_tokens = draft.between(60, 110)
    draft.concurrency(3.0, 9.0)
    each = draft.traffic.prompt_tokens + draft.traffic.shared_tokens + draft.traffic.output_tokens
    return {"kv_tokens": draft.between(1.8, 5.0) * each}


def _chunk_small(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    chunk = draft.whole(16, 48)
    draft.traffic.prompt_tokens = chunk * draft.between(10, 34)
    draft.concurrency(0.3, 0.9)
    return {"chunk": chunk}


def _chunk_large(draft: Draft) -> Sizes:
    return {"chunk": draft.rng.choice((8192, 16_384))}


def _cpu_starved(draft: Draft) -> Sizes:
    return {"share": min(0.7, draft.between(0.25, 0.6))}


def _pauses(draft: Draft) -> Sizes:
    ttft_s, window_s = draft.slo.ttft_s, max(WINDOW_S[0], draft.window_s)
    shape = draft.rng.random()
    if shape < 0.6:
        return {
            "first_s": draft.rng.uniform(0.2, 3.0) * ttft_s,
            "length_s": draft.between(0.8, 3.0) * ttft_s,
            "every_s": draft.between(4, 12) * ttft_s,
        }
    length_s = draft.between(5, 12) * ttft_s
    first_s = draft.rng.uniform(0.1, 0.6) * window_s if shape < 0.8 else window_s - 0.7 * length_s
    return {"first_s": max(0.0, first_s), "length_s": length_s, "every_s": 0.0}


def _network(draft: Draft) -> Sizes:
    whole_s = draft.between(0.7, 2.0) * draft.slo.ttft_s
    there = draft.rng.random()
    return {"there_s": there * whole_s, "back_s": (1 - there) * whole_s}


def _slow_client(draft: Draft) -> Sizes:
    draft.traffic.output_tokens = draft.between(45, 80)
    draft.concurrency(1.0, 3.0)
    return {"taken_s": draft.between(1.05, 2.5) * draft.slo.tpot_s}


def _disconnects(draft: Draft) -> Sizes:
    # Half of the requests and more would be a verdict of its own.
    return {
        "share": min(0.45, draft.between(0.2, 0.4)),
        "after_s": draft.between(0.3, 2.0) * draft.slo.ttft_s,
    }


def _rejected(draft: Draft) -> Sizes:
    return {"share": draft.between(0.15, 0.5)}


def _cold_start(draft: Draft) -> Sizes:
    draft.settle_steps = 0
    return {
        "steps": draft.whole(8, 20),
        "extra_s": draft.between(0.3, 1.1) * draft.slo.ttft_s,
        "age_s": draft.between(5, 60),
    }


def _uneven(draft: Draft) -> Sizes:
    draft.engines = 2
    draft.traffic.turns = 1
    draft.traffic.prompt_tokens = draft.prompt_taking(0.25, 0.5)
    draft.traffic.output_tokens = draft.between(8, 20)
    draft.load(0.9, 1.4)
    return {"skew": min(1.0, draft.between(0.6, 1.0))}


def _creep(draft: Draft) -> Sizes:
    steps = draft.settle_steps + draft.window_steps
    return {"per_step": draft.between(1.5, 4.0) / steps}


def _admission_lock(draft: Draft) -> Sizes:
    draft.traffic.turns = 1
    return {"extra_s": draft.between(0.4, 1.3) * draft.slo.ttft_s}


def _neighbour(draft: Draft) -> Sizes:
    """Steps beyond the objective, for about half of the window."""
    window_s = max(WINDOW_S[0], draft.window_s)
    length_s = draft.between(0.2, 0.4) * window_s
    times = draft.between(1.3, 2.2) * draft.slo.tpot_s / draft.world.step_s(3)
    return {
        "times": max(1.5, times),
        "first_s": draft.rng.uniform(0.0, 0.3) * window_s,
        "length_s": length_s,
        "every_s": draft.between(0.4, 1.0) * length_s,
    }


def _drains_first(draft: Draft) -> Sizes:
    """Answers that take longer than a start may, so that who comes during one starts late."""
    draft.traffic.turns = 1
    draft.traffic.output_tokens = draft.between(1.5, 3.0) * draft.slo.ttft_s / draft.world.step_s(3)
    draft.concurrency(1.3, 2.3)
    return {}


def _grammar_masks(draft: Draft) -> Sizes:
    """Masks take a step beyond the objective; so few requests have one that many steps are without any."""
    draft.traffic.turns = 1
    draft.traffic.output_tokens = draft.between(16, 32)
    every = max(2, draft.whole(3, 5))
    bare_s = draft.world.step_s(3)
    masked_s = max(1.5 * bare_s, draft.between(1.3, 2.2) * draft.slo.tpot_s)
    draft.traffic.rate_per_s = draft.between(0.4, 1.0) * every / (draft.traffic.output_tokens * masked_s)
    return {"every": every, "extra_s": masked_s - bare_s}


def _seldom_admits(draft: Draft) -> Sizes:
    """So many steps from one look at the queue to the next that who comes between them starts late."""
    draft.traffic.turns = 1
    draft.traffic.output_tokens = draft.between(50, 100)
    draft.concurrency(2.5, 4.5)
    return {"steps": max(8, round(draft.between(1.6, 3.2) * draft.slo.ttft_s / draft.world.step_s(3)))}


PLANTERS: Mapping[str, Callable[[Draft], Sizes]] = {
    "plain": _plain,
    "overload_prompts": _overload_prompts,
    "overload_streams": _overload_streams,
    "slow_format": _slow_format,
    "long_alone": _long_alone,
    "burst": _burst,
    "long_tenant": _long_tenant,
    "prefix_salted": _salted,
    "prefix_cache_off": _salted,
    "cap_low": _cap_low,
    "cap_high": _cap_high,
    "kv_small": _kv_small,
    "chunk_small": _chunk_small,
    "chunk_large": _chunk_large,
    "cpu_starved": _cpu_starved,
    "pauses": _pauses,
    "network": _network,
    "slow_client": _slow_client,
    "disconnects": _disconnects,
    "rejected": _rejected,
    "cold_start": _cold_start,
    "uneven": _uneven,
    "creep": _creep,
    "admission_lock": _admission_lock,
    "neighbour": _neighbour,
    "drains_first": _drains_first,
    "grammar_masks": _grammar_masks,
    "seldom_admits": _seldom_admits,
}

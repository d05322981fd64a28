"""The registry of factors: what each does to a scene, its neutral value, and the causes that count as true.

Registered before any scene is judged. The neutral value of a fault is its absence. That of a lever (chunk,
cap) is the best of LEVER_GRIDS, found with every other factor neutral; that of the KV cache is the largest of
its grid, as more never hurts. A cause counts as true for a factor in a phase only if it stands in `says`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from phasewise.core.slo import Slo
from phasewise.diagnosis.finding import Cause

from .scene import Scene, Settings
from .traffic import Traffic
from .worlds import World

START, STREAM, FAILING = "slow_to_start", "slow_to_stream", "failing"
HEALTHY = "healthy"
NO_KNOWN_CAUSE = "no known cause"
LOAD, INTRINSIC, INTRINSIC_PROMPTS = "load", "intrinsic", "intrinsic prompts"

LEVER_GRIDS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"chunk": (256, 1024, 4096), "cap": (8, 24, 64, 256)}
)
AMPLE_KV_TOKENS = 131_072


@dataclass(slots=True)
class Setting:
    """Everything a run needs; factors change it."""

    world: World
    traffic: Traffic
    settings: Settings
    slo: Slo
    engines: int
    share: float = 1.0
    cold_steps: int = 0
    cold_s: float = 0.0
    age_s: float = 3600.0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    there_s: float = 0.0005
    back_s: float = 0.0005
    taken_s: float = 0.0
    skew: float = 0.0
    creep_per_step: float = 0.0
    admission_s: float = 0.0
    shared: list[tuple[float, float]] = field(default_factory=list)
    shared_times: float = 1.0
    drains_first: bool = False
    masked_every: int = 0
    mask_s: float = 0.0
    admits_every: int = 0
    one_at_a_time: bool = False
    settle_s: float = 0.0
    window_s: float = 0.0

    @property
    def ends_s(self) -> float:
        """When the window closes."""
        return self.settle_s + self.window_s


Sizes = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Factor:
    """What can be wrong. `lever` names the setting whose best grid value is its neutral value.

    `levels` are those at which it can be seen at all. An `unknown` factor has no name in the rules.
    """

    apply: Callable[[Setting, Sizes], None]
    says: Mapping[str, frozenset[str]]
    lever: str | None = None
    levels: frozenset[str] = frozenset({"gateway", "recorder", "stock"})
    unknown: bool = False


def _burst(it: Setting, sizes: Sizes) -> None:
    it.traffic.burst_s = sizes["every_s"]


def _long_tenant(it: Setting, sizes: Sizes) -> None:
    it.traffic.long_every, it.traffic.long_tokens = int(sizes["every"]), int(sizes["tokens"])


def _salted(it: Setting, _: Sizes) -> None:
    it.traffic.salted = True


def _cache_off(it: Setting, _: Sizes) -> None:
    it.settings = replace(it.settings, prefix_cache=False)


def _cap(it: Setting, sizes: Sizes) -> None:
    it.settings = replace(it.settings, cap=int(sizes["cap"]))


def _chunk(it: Setting, sizes: Sizes) -> None:
    it.settings = replace(it.settings, chunk=int(sizes["chunk"]))


def _kv_small(it: Setting, sizes: Sizes) -> None:
    it.settings = replace(it.settings, kv_tokens=int(sizes["kv_tokens"]))


def _starved(it: Setting, sizes: Sizes) -> None:
    it.share = sizes["share"]


def _pauses(it: Setting, sizes: Sizes) -> None:
    """`every_s` apart, beginning at `first_s` of the window; the last may outlast it."""
    it.pauses += _stretches(it, sizes)


def _stretches(it: Setting, sizes: Sizes) -> list[tuple[float, float]]:
    """One stretch of time, or with `every_s` as many as begin before the window closes."""
    stretches: list[tuple[float, float]] = []
    at_s = it.settle_s + sizes["first_s"]
    while at_s < it.ends_s:
        stretches.append((at_s, at_s + sizes["length_s"]))
        if not sizes["every_s"]:
            break
        at_s += sizes["length_s"] + sizes["every_s"]
    return stretches


def _network(it: Setting, sizes: Sizes) -> None:
    it.there_s += sizes["there_s"]
    it.back_s += sizes["back_s"]


def _slow_client(it: Setting, sizes: Sizes) -> None:
    it.taken_s = sizes["taken_s"]


def _disconnects(it: Setting, sizes: Sizes) -> None:
    it.traffic.leaving_share, it.traffic.leaving_s = sizes["share"], sizes["after_s"]


def _rejected(it: Setting, sizes: Sizes) -> None:
    it.traffic.too_long_share = sizes["share"]


def _cold(it: Setting, sizes: Sizes) -> None:
    it.cold_steps, it.cold_s, it.age_s = int(sizes["steps"]), sizes["extra_s"], sizes["age_s"]


def _uneven(it: Setting, sizes: Sizes) -> None:
    it.skew = sizes["skew"]


def _creep(it: Setting, sizes: Sizes) -> None:
    it.creep_per_step = sizes["per_step"]


def _admission(it: Setting, sizes: Sizes) -> None:
    it.admission_s = sizes["extra_s"]


def _neighbour(it: Setting, sizes: Sizes) -> None:
    """Stretches as those of pauses, in which a step takes `times` as long."""
    it.shared += _stretches(it, sizes)
    it.shared_times = sizes["times"]


def _drains_first(it: Setting, _: Sizes) -> None:
    it.drains_first = True


def _grammar_masks(it: Setting, sizes: Sizes) -> None:
    """One in `every` requests has a mask: steps that give such a one a further token take `extra_s` more.

    The masks of a step are built side by side, so that several take no longer than one.
    """
    it.masked_every, it.mask_s = int(sizes["every"]), sizes["extra_s"]


def _seldom_admits(it: Setting, sizes: Sizes) -> None:
    it.admits_every = int(sizes["steps"])


def _both(*causes: str) -> Mapping[str, frozenset[str]]:
    return {START: frozenset(causes), STREAM: frozenset(causes)}


_AT_GATEWAY = frozenset({"gateway"})
_FLOOR = (Cause.DECODE_FLOOR, Cause.DECODE_WEIGHTS, Cause.DECODE_OVERHEAD)

FACTORS: Mapping[str, Factor] = MappingProxyType(
    {
        "burst": Factor(
            _burst,
            {START: frozenset({Cause.BURSTS}), STREAM: frozenset({Cause.BATCH_CAP_HIGH, Cause.BURSTS})},
        ),
        "long_tenant": Factor(
            _long_tenant, {START: frozenset({Cause.LONG_PROMPTS}), STREAM: frozenset({Cause.CHUNKS_STALL})}
        ),
        "prefix_salted": Factor(_salted, _both(Cause.PREFIX_SALTED)),
        "prefix_cache_off": Factor(_cache_off, _both(Cause.PREFIX_CACHE_OFF)),
        "cap_low": Factor(_cap, _both(Cause.BATCH_CAP_LOW), lever="cap"),
        "cap_high": Factor(_cap, _both(Cause.BATCH_CAP_HIGH), lever="cap"),
        "kv_small": Factor(_kv_small, _both(Cause.KV_EXHAUSTED, Cause.PREFIX_EVICTED)),
        "chunk_small": Factor(_chunk, _both(Cause.CHUNKS_SMALL), lever="chunk"),
        "chunk_large": Factor(_chunk, _both(Cause.CHUNKS_STALL), lever="chunk"),
        "cpu_starved": Factor(_starved, _both(Cause.ENGINE_STARVED)),
        "pauses": Factor(
            _pauses,
            {**_both(Cause.ENGINE_PAUSES, Cause.ENGINE_HUNG), FAILING: frozenset({Cause.ENGINE_HUNG})},
        ),
        "network": Factor(_network, _both(Cause.NETWORK_OR_PROXY), levels=_AT_GATEWAY),
        "slow_client": Factor(_slow_client, _both(Cause.SLOW_CLIENT), levels=_AT_GATEWAY),
        "disconnects": Factor(_disconnects, {START: frozenset(), STREAM: frozenset()}),
        "rejected": Factor(_rejected, {FAILING: frozenset({Cause.REQUESTS_REJECTED})}, levels=_AT_GATEWAY),
        "cold_start": Factor(_cold, _both(Cause.COLD_START)),
        "uneven": Factor(_uneven, _both(Cause.UNEVEN_LOAD)),
        "creep": Factor(_creep, _both(), unknown=True),
        "admission_lock": Factor(_admission, _both(), unknown=True),
        "neighbour": Factor(_neighbour, _both(), unknown=True),
        "drains_first": Factor(_drains_first, _both(), unknown=True),
        "grammar_masks": Factor(_grammar_masks, _both(), unknown=True),
        "seldom_admits": Factor(_seldom_admits, _both(), unknown=True),
    }
)
"""Overload is no factor: nothing is removed for it. See LOAD."""

RESIDUAL_SAYS: Mapping[str, Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        LOAD: {
            START: frozenset({Cause.OVERLOAD}),
            STREAM: frozenset({Cause.BATCH_CAP_HIGH, Cause.OVERLOAD}),
        },
        INTRINSIC: {
            START: frozenset({Cause.LONG_PROMPTS}),
            STREAM: frozenset({*_FLOOR, Cause.DECODE_KV_READS}),
        },
        INTRINSIC_PROMPTS: {
            START: frozenset({Cause.LONG_PROMPTS}),
            STREAM: frozenset({Cause.CHUNKS_STALL}),
        },
    }
)
"""Intrinsic in the prompts: a request alone starts late but streams well, so its stream is slow only while
the prompts of others are computed."""
LEVER_SAYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "chunk up": frozenset({Cause.CHUNKS_SMALL}),
        "chunk down": frozenset({Cause.CHUNKS_STALL}),
        "cap up": frozenset({Cause.BATCH_CAP_LOW}),
        "cap down": frozenset({Cause.BATCH_CAP_HIGH}),
    }
)
"""What is true if a lever that nobody planted would help: by the direction in which it helps."""

_REPEATED_OR_NOT = tuple(
    frozenset({repeated, computed})
    for repeated in (Cause.PREFIX_SALTED, Cause.PREFIX_CACHE_OFF)
    for computed in (Cause.LONG_PROMPTS, Cause.CHUNKS_STALL)
)
INSEPARABLE: Mapping[str, tuple[frozenset[str], ...]] = MappingProxyType(
    {
        "gateway": (),
        # Without prompt texts nobody sees that prompts repeat each other.
        "recorder": _REPEATED_OR_NOT,
        "stock": (
            *_REPEATED_OR_NOT,
            frozenset({Cause.CHUNKS_SMALL, Cause.LONG_PROMPTS}),
            frozenset({Cause.ENGINE_PAUSES, Cause.CHUNKS_STALL}),
        ),
    }
)
"""Pairs of which a verdict may name both where one is true: what a level shows is the same for both."""


def setting_of(
    scene: Scene, active: frozenset[str], levers: Mapping[str, int] = MappingProxyType({})
) -> Setting:
    """The scene with only some of its factors; `levers` are the neutral values of settings."""
    it = Setting(
        world=scene.world,
        traffic=Traffic.from_json(scene.traffic),
        settings=scene.settings.changed(levers),
        slo=scene.slo,
        engines=scene.engines,
        settle_s=scene.settle_s,
        window_s=scene.window_s,
    )
    for factor in scene.factors:
        if factor.name in active:
            FACTORS[factor.name].apply(it, factor.sizes)
    return it

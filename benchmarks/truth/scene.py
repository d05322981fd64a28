"""A scene: machine, traffic, settings, faults and the level at which it is observed, as a small JSON object.

    {"id": "tune-17", "seed": 17, "level": "gateway", "engines": 1,
     "world": {"family": "power", "floor_s": 0.03, ...},              see worlds.World
     "traffic": {"arrivals": "poisson", "rate_per_s": 2.5, ...},      see traffic.Traffic
     "settings": {"chunk": 2048, "cap": 256, "kv_tokens": 65536, "block": 16, "prefix_cache": true},
     "slo": {"ttft_s": 0.6, "tpot_s": 0.07}, "settle_s": 8, "window_s": 24,
     "factors": [{"name": "pauses", "length_s": 1.5, "every_s": 6.0}]}

`traffic` and `settings` are the neutral ones. A factor changes them when it is active; its numbers stand
beside its name, and factors.py says what they mean. `planted` is only for reading: nothing is judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from phasewise.core.slo import Slo

from .traffic import Traffic
from .worlds import World

LEVELS = ("gateway", "recorder", "stock")


@dataclass(frozen=True, slots=True)
class Settings:
    """An engine's settings; `chunk` is max_num_batched_tokens, `cap` is max_num_seqs."""

    chunk: int = 2048
    cap: int = 256
    kv_tokens: int = 65_536
    block: int = 16
    prefix_cache: bool = True

    def changed(self, values: Mapping[str, int]) -> Settings:
        """With other values for some of them, by name."""
        return replace(self, **values)  # type: ignore[arg-type] # which of them is the bool, a name cannot say


@dataclass(frozen=True, slots=True)
class FactorDraw:
    """A factor that is present in a scene, with its numbers."""

    name: str
    sizes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene as drawn."""

    id: str
    seed: int
    level: str
    world: World
    traffic: Mapping[str, Any]
    settings: Settings
    slo: Slo
    settle_s: float
    window_s: float
    factors: tuple[FactorDraw, ...] = ()
    engines: int = 1

    @property
    def planted(self) -> tuple[str, ...]:
        """The names of its factors."""
        return tuple(factor.name for factor in self.factors)


def scene_record(scene: Scene) -> dict[str, Any]:
    """The scene as plain JSON types."""
    record = {
        name: getattr(scene, name) for name in ("id", "seed", "level", "engines", "settle_s", "window_s")
    }
    return record | {
        "planted": list(scene.planted),
        "world": asdict(scene.world),
        "traffic": dict(scene.traffic),
        "settings": asdict(scene.settings),
        "slo": asdict(scene.slo),
        "factors": [{"name": factor.name, **factor.sizes} for factor in scene.factors],
    }


def scene_from_record(record: Mapping[str, Any]) -> Scene:
    """Read a scene."""
    if record["level"] not in LEVELS:
        raise ValueError(f"scene {record['id']}: level {record['level']!r} is not one of {', '.join(LEVELS)}")
    Traffic.from_json(record["traffic"])
    return Scene(
        id=record["id"],
        seed=record["seed"],
        level=record["level"],
        world=World(**record["world"]),
        traffic=record["traffic"],
        settings=Settings(**record["settings"]),
        slo=Slo(**record["slo"]),
        settle_s=record["settle_s"],
        window_s=record["window_s"],
        factors=tuple(
            FactorDraw(it["name"], {key: value for key, value in it.items() if key != "name"})
            for it in record["factors"]
        ),
        engines=record.get("engines", 1),
    )

"""Whether the first advice pays: it is played on the scene itself, beside every change of a closed grid.

A *gain* is the share of the scene's loss that a change takes away, over the scene's three seeds. A lever is
played as its new value. A fix outside the engine is played as the absence of every planted factor for which
its cause is true, so it gains nothing where the cause is wrong. The grid has the values of LEVERS, prefix
caching, a larger KV cache, and the absence of each planted fault. One more engine is no lever: it is played
where it is advised, but nothing is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from phasewise.diagnosis.advice.fix import Fix, LeverChange
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.finding import Cause

from .evidence import observe
from .factors import FACTORS, Setting, setting_of
from .play import play
from .removal import SEEDS, loss_of, seed_text
from .scene import Scene

LEVERS: Mapping[str, tuple[int, ...]] = {"chunk": (128, 256, 512, 1024, 2048, 4096), "cap": (8, 24, 64, 256)}
KV_TIMES = (2, 4, 8)
PAYS = 0.05
"""Where no change of the grid gains more than this, or more than equal runs differ by, nothing pays."""

Change = Callable[[Setting], None]


@dataclass(frozen=True, slots=True)
class Advised:
    """The first advice on a scene, what it gains, and the best of the grid. None: there was no advice."""

    id: str
    cause: str | None
    advice: str | None
    gain: float
    best: str
    best_gain: float
    noise: float

    @property
    def regret(self) -> float:
        """What following the advice leaves on the table, as a share of the loss."""
        if self.best_gain <= max(PAYS, self.noise):
            return 0.0
        return 1.0 if self.advice is None else max(0.0, self.best_gain - self.gain)

    @property
    def harmful(self) -> bool:
        """Whether the scene loses more with it, beyond what equal runs differ by."""
        return -self.gain > max(PAYS, self.noise)


def judge_advice(scene: Scene) -> Advised:
    """Ask for advice, follow it, and try everything else."""
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    verdict = diagnose(observe(played, scene.level), scene.slo, Known())
    fix = verdict.advice.fixes[0] if verdict.advice is not None and verdict.advice.fixes else None
    cause = None if verdict.top is None else verdict.top.cause
    trial = _Trial(scene)
    tried = {name: trial.gain(change, seeds=1) for name, change in _grid(scene).items()}
    best = max(tried, key=lambda name: tried[name])
    return Advised(
        id=scene.id,
        cause=None if cause is None else cause.value,
        advice=None if fix is None else fix.what,
        gain=0.0 if fix is None or cause is None else trial.gain(_change_of(fix, cause, scene)),
        best=best,
        best_gain=trial.gain(_grid(scene)[best]),
        noise=trial.noise(),
    )


class _Trial:
    """A scene's loss as it is, and with a change."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._as_it_is = [self._loss(_nothing, seed) for seed in range(SEEDS)]

    def gain(self, change: Change, seeds: int = SEEDS) -> float:
        before = fmean(self._as_it_is[:seeds])
        after = fmean(self._loss(change, seed) for seed in range(seeds))
        return (before - after) / before if before else 0.0

    def noise(self) -> float:
        apart = [abs(self._loss(_nothing, seed, "again") - loss) for seed, loss in enumerate(self._as_it_is)]
        return fmean(apart) / fmean(self._as_it_is) if fmean(self._as_it_is) else 0.0

    def _loss(self, change: Change, seed: int, noise: str = "noise") -> float:
        setting = setting_of(self._scene, frozenset(self._scene.planted))
        change(setting)
        return loss_of(play(setting, seed_text(self._scene, seed), noise)).total_s


def _nothing(it: Setting) -> None:
    return


def _set(**settings: int) -> Change:
    def change(it: Setting) -> None:
        it.settings = it.settings.changed(settings)

    return change


def _more_kv(times: float) -> Change:
    def change(it: Setting) -> None:
        it.settings = replace(it.settings, kv_tokens=round(times * it.settings.kv_tokens))

    return change


def _without(names: frozenset[str], scene: Scene) -> Change:
    """The scene without these factors."""

    def change(it: Setting) -> None:
        rest = setting_of(scene, frozenset(scene.planted) - names)
        for name in Setting.__slots__:
            setattr(it, name, getattr(rest, name))

    return change


def _grid(scene: Scene) -> dict[str, Change]:
    """Every change that the advice is held against."""
    levers = {
        f"{lever} {value}": _set(**{lever: value}) for lever, values in LEVERS.items() for value in values
    }
    faults = {f"no {name}": _without(frozenset({name}), scene) for name in scene.planted if _is_fault(name)}
    memory = {f"{times} times the KV cache": _more_kv(times) for times in KV_TIMES}
    return levers | {"prefix cache": _set(prefix_cache=True)} | memory | faults


def _is_fault(name: str) -> bool:
    return FACTORS[name].lever is None and not FACTORS[name].unknown and name != "kv_small"


def _change_of(fix: Fix, cause: Cause, scene: Scene) -> Change:
    """What following a fix does to a scene."""
    if fix.lever is not None:
        return _lever(fix.lever)
    named = (
        name
        for name in scene.planted
        if _is_fault(name) and any(cause in causes for causes in FACTORS[name].says.values())
    )
    return _without(frozenset(named), scene)


def _lever(change: LeverChange) -> Change:
    match change.name, change.value:
        case "max_num_batched_tokens", int(tokens):
            return _set(chunk=tokens)
        case "max_num_seqs", int(running):
            return _set(cap=running)
        case "prefix_cache", bool(on):
            return _set(prefix_cache=on)
        case (("kv_cache_memory_bytes" | "kv_dtype"), _):
            return _more_kv(change.times or 2.0)
        case "replicas", int(engines):
            return lambda it: setattr(it, "engines", engines)
        case _:
            # Drafts are never accepted here: the virtual answers repeat nothing.
            return _nothing


def advice_summary(rows: list[Advised]) -> dict[str, Any]:
    """The figures of all advice."""
    if not rows:
        return {"advice_scenes": 0}
    return {
        "advice_scenes": len(rows),
        "advice_regret_median": round(median(row.regret for row in rows), 4),
        "advice_regret_mean": round(fmean(row.regret for row in rows), 4),
        "advice_harmful_share": round(fmean(row.harmful for row in rows), 4),
        "advice_missing_share": round(fmean(row.advice is None for row in rows), 4),
    }

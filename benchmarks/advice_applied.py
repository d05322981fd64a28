"""Follows the first advice of `diagnose` on the real engine: what did clients lose before, and after?

    python benchmarks/advice_applied.py [--only NAME ...] [--window 26] [--quick] [--json]

Takes the kept scenes of strangers (records/real_scenes) whose first advice is a setting of the engine. Each
is played on the real engine as planted and, right after it, with that one setting changed;
the clients, their traffic and the trouble stay the same. One more engine is not tried: it would take the core
of the clients. The loss is the time beyond the objective that clients measured, per request of the window.
Advice gains if it takes a tenth of that away, and is harmful if it adds as much. A scene that is not slow
here (at most 15% of its requests late) shows nothing and is not counted. A single pair of windows is no proof
of a small effect: both losses are printed.

The last line is one JSON object: advised, applied, slow, gained, harmful, gain_median, and a row per scene.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from planted.fleet import running_fleet
from real_scenes import HERE, KEPT, SLOW_ABOVE, Loss, Scene, evidence_name, kept, play, say, total_s

import phasewise
from phasewise.diagnosis.advice.fix import Fix, LeverChange
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle
from phasewise.fleet.config.reading import byte_size

WINDOW_S = 26.0
MATTERS = 0.1


def main() -> None:
    """Follow the advice on one scene after the other and print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenes alone")
    parser.add_argument("--window", type=float, default=WINDOW_S, metavar="SECONDS")
    parser.add_argument("--quick", action="store_true", help="say what is advised, and play nothing")
    parser.add_argument("--json", action="store_true", help="print nothing but the last line")
    options = parser.parse_args()
    os.environ.setdefault("PHASEWISE_HOME", str(HERE.parent / ".phasewise"))
    advised = [it for it in advice_on_all() if not options.only or it[0]["name"] in options.only]
    rows = []
    for scene, fix, change in advised if not options.quick else ():
        rows.append(row := follow(scene, fix, change, options.window))
        if not options.json:
            say(json.dumps(row))
    gains = [row["gain"] for row in rows if row["late_before"] > SLOW_ABOVE]
    record = {
        "advised": len(advised),
        "applied": len(rows),
        "slow": len(gains),
        "gained": sum(gain >= MATTERS for gain in gains),
        "harmful": sum(gain <= -MATTERS for gain in gains),
        "gain_median": median(gains) if gains else None,
        "window_s": options.window,
        "interpreter": platform.python_version(),
        "build": phasewise.__version__,
        "rows": rows,
    }
    print(json.dumps(record))


def advice_on_all() -> Iterator[tuple[Scene, Fix, LeverChange]]:
    """The scenes on which a setting is advised first."""
    for scene in kept(KEPT):
        fix = first_advice(KEPT / evidence_name(scene))
        if fix is not None and fix.lever is not None and fix.lever.name != "replicas":
            yield scene, fix, fix.lever


def first_advice(evidence: Path) -> Fix | None:
    """What the verdict on kept evidence advises first."""
    if not evidence.exists():
        return None
    observed, slo = read_bundle(evidence.read_bytes())
    advice = diagnose(evidence_of(observed), slo, Known()).advice
    return advice.fixes[0] if advice is not None and advice.fixes else None


def follow(scene: Scene, fix: Fix, change: LeverChange, window_s: float) -> dict[str, Any]:
    """The scene as it was planted, and with the change."""
    levers = yaml.safe_load("{" + scene.get("levers", "") + "}")
    planted, changed = (loss_with(scene, it, window_s) for it in (levers, applied(levers, change)))
    before, after = lost_per_request(planted), lost_per_request(changed)
    predicted = fix.rough_gain if fix.effect is None else fix.effect.gain
    return {
        "scene": scene["name"],
        "level": scene["level"],
        "advice": fix.what,
        "late_before": round(planted["late"] / max(1, planted["requests"]), 3),
        "loss_before_s": round(before, 3),
        "loss_after_s": round(after, 3),
        "gain": round(1.0 - after / before, 3) if before else 0.0,
        "predicted_gain": None if predicted is None else round(predicted, 3),
    }


def applied(levers: dict[str, Any], change: LeverChange) -> dict[str, Any]:
    """The levers with the change."""
    value = change.fleet_value
    if change.times is not None:
        value = f"{round(byte_size(levers[change.name]) * change.times / 2**20)}MiB"
    return levers | {change.name: value}


def loss_with(scene: Scene, levers: dict[str, Any], window_s: float) -> Loss:
    """Play the scene on a fresh engine with these levers."""
    say(f"{scene['name']} ({scene['level']}) with {levers or 'defaults'}: {window_s:g} s")
    words = yaml.safe_dump(levers, default_flow_style=True, width=1_000).strip()[1:-1]
    flags = tuple(scene.get("flags", ()))
    with running_fleet(words, 1, fresh=False, logprobs=False, flags=flags) as fleet:
        return play(scene, fleet, None, window_s)


def lost_per_request(loss: Loss) -> float:
    """What a request lost on average."""
    return total_s(loss) / max(1, loss["requests"])


if __name__ == "__main__":
    main()

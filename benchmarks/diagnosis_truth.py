"""Judges verdicts on virtual scenes whose truth is found by removal, not by what was planted.

    python benchmarks/diagnosis_truth.py [--set tune|held-out] [--scenes N|FILE] [--seed N] [--levels LIST]
                                         [--quick] [--json] [--save DIR] [--rejudge DIR] [--advice N]

A scene is a random fleet with random traffic, settings and faults: alone, in twos, or none. It is played in
virtual time on machines whose step costs the product's fit does not contain. Its loss is the time beyond the
objective, summed over its requests. Every subset of its factors is played on the same three seeds; a cause is
true if it has a Shapley share of at least 0.4 of the loss, above the difference between equal runs. Load is
true only if the scene stays slow with everything else neutral, and it is intrinsic if it is slow even with
one request at a time. Scenes with 5% to 15% late requests are not scored, nor are those without a true cause.

A verdict is right if its phase and its first cause are true. truth/factors.py registers which cause is true
for which factor. Tuning scenes and held-out scenes share no cost family, noise, arrivals, pair or fault
without a name, and held-out ranges are wider. The seed of the held-out set is the hash of the commit whose
rules are judged unless --seed is given, and every held-out run is added to records/truth_runs.jsonl: who
changes a rule after a look at one has turned that seed into a tuning seed.

`--save DIR` keeps scenes and truths; `--rejudge DIR` judges them again without the removal runs. `--advice N`
follows the first advice on the first N slow scenes and says what it gained (truth/advice.py). The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from truth.advice import Advised, advice_summary, judge_advice
from truth.draw import HELD_OUT, TUNE, draw_scene
from truth.evidence import observe
from truth.factors import setting_of
from truth.judging import Judged, is_right, said_by, summary, table, truth_from_record, truth_record
from truth.play import play
from truth.removal import SLOW, Truth, find_truth, loss_of, seed_text
from truth.scene import LEVELS, Scene, scene_from_record, scene_record

import phasewise
from phasewise.diagnosis.diagnose import Known, find_cause

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records" / "truth_runs.jsonl"
SCENES, QUICK_SCENES, HELD_OUT_SCENES = 100, 6, 2000
KEPT = "scenes.jsonl"

Kept = Mapping[str, Any]
"""A scene's record, with its truth if that is known."""


def main() -> None:
    """Judge every scene and print the record."""
    options = parse_options()
    began_s, judged_commit = time.monotonic(), commit()
    rows: list[Judged] = []
    kept: list[dict[str, Any]] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool, kept_file(options.save) as file:
        for row, record in pool.map(judge_scene, scenes_of(options), chunksize=2):
            rows.append(row)
            kept.append(record)
            print(json.dumps(record), file=file, flush=True)
            if not options.json:
                say(line_of(row))
        slow = (scene_from_record(it["scene"]) for it in kept if it["truth"]["state"] == SLOW)
        advised: list[Advised] = []
        for each in pool.map(judge_advice, islice(slow, options.advice), chunksize=2):
            advised.append(each)
            if not options.json:
                say(advice_line(each))
    found = summary(rows, (time.monotonic() - began_s) / 60)
    record = (
        found
        | advice_summary(advised)
        | {
            "set": options.set,
            "seed": options.seed,
            "commit": judged_commit,
            "cpu_minutes": round(cpu_s() / 60, 2),
            "interpreter": platform.python_version(),
            "build": phasewise.__version__,
        }
    )
    if options.set == HELD_OUT and options.rejudge is None:
        log(record)
    if not options.json:
        print(table(rows))
    print(json.dumps(record))


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=(TUNE, HELD_OUT), default=TUNE)
    parser.add_argument(
        "--scenes", help="how many scenes to draw, or a file of scenes, one JSON object a line"
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--rejudge", type=Path)
    parser.add_argument("--advice", type=int, default=0, metavar="N")
    options = parser.parse_args()
    options.levels = tuple(options.levels.split(","))
    if unknown := set(options.levels) - set(LEVELS):
        parser.error(f"--levels: {', '.join(sorted(unknown))} is not one of {', '.join(LEVELS)}")
    if options.save is not None and options.save == options.rejudge:
        parser.error("--save and --rejudge name the same folder: what is read would be overwritten")
    if options.seed is None:
        options.seed = int(commit().rstrip("+")[:8], 16) if options.set == HELD_OUT else 1
    return options


def kept_file(folder: Path | None) -> TextIO:
    """Where scenes and truths are kept as they are judged, so that a run that is cut short is not lost."""
    if folder is None:
        return Path(os.devnull).open("w")
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / KEPT).open("w", encoding="utf-8")


def scenes_of(options: argparse.Namespace) -> Iterator[Kept]:
    """The scenes to judge: kept ones, those of a file, or drawn ones."""
    if options.rejudge is not None:
        yield from _read(options.rejudge / KEPT)
    elif options.scenes is not None and not options.scenes.isdigit():
        yield from _read(Path(options.scenes))
    else:
        usual = QUICK_SCENES if options.quick else HELD_OUT_SCENES if options.set == HELD_OUT else SCENES
        for number in range(int(options.scenes or usual)):
            yield {"scene": scene_record(draw_scene(number, options.set, options.seed, options.levels))}


def _read(path: Path) -> Iterator[Kept]:
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield record if "scene" in record else {"scene": record}


def judge_scene(kept: Kept) -> tuple[Judged, dict[str, Any]]:
    """Play a scene, find its truth unless it is known, and judge the verdict on it."""
    scene = scene_from_record(kept["scene"])
    played = play(setting_of(scene, frozenset(scene.planted)), seed_text(scene, 0))
    truth = truth_from_record(kept["truth"]) if "truth" in kept else find_truth(scene, loss_of(played))
    said = said_by(find_cause(observe(played, scene.level), scene.slo, Known()))
    row = Judged(scene.id, scene.level, scene.planted, truth, said, is_right(truth, said, scene.level))
    return row, _kept(scene, truth, row)


def _kept(scene: Scene, truth: Truth, row: Judged) -> dict[str, Any]:
    return {
        "scene": scene_record(scene),
        "truth": truth_record(truth),
        "said": asdict(row.said),
        "right": row.right,
    }


def line_of(row: Judged) -> str:
    """What was said of a scene, as it happens."""
    mark = "ok  " if row.right else "    " if row.scored else "skip"
    planted = "+".join(row.planted) or "-"
    sure = f" ({row.said.confidence})" if row.said.confidence else ""
    return (
        f"{mark} {row.id} {row.level} planted {planted}; true {row.truth.name} {dict(row.truth.shares)} "
        f"late {row.truth.late_share:.0%}; said {row.said.ruling} {row.said.name}{sure}"
    )


def advice_line(row: Advised) -> str:
    """What an advice gained, as it happens."""
    mark = "harm" if row.harmful else "    " if row.regret > 0.1 else "ok  "
    return (
        f"{mark} {row.id} {row.cause}: {row.advice} gains {row.gain:.0%}, "
        f"{row.best} {row.best_gain:.0%} (equal runs differ by {row.noise:.0%})"
    )


def commit() -> str:
    """The commit that is judged, with a mark if sources have changed since."""
    head, changed = (
        subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    return (head or "0") + ("+" if changed else "")


def cpu_s() -> float:
    """CPU time of this process and of its workers, which have ended by now."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def log(record: Mapping[str, Any]) -> None:
    """Add a held-out run to the record of all."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"when": when, **record}) + "\n")


def say(line: str) -> None:
    """Progress, as it happens."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

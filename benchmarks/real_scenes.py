"""Plays scenes on the real engine, and judges verdicts by what removal shows and what was stated beforehand.

    python benchmarks/real_scenes.py --play DIR FOLDER ... [--only NAME ...]    evidence and losses into DIR
    python benchmarks/real_scenes.py [--rejudge DIR] [--json]                   verdicts on what is kept

A FOLDER holds `scenes.json`, {"client": FILE, "scenes": [...]}, and a traffic client of its own. It is run as
`python FILE TRAFFIC --port PORT --dur SECONDS --log FILE` and writes a JSON object per request: `t`, `ttft`,
`tpot`, `worst` (gap), `n` (tokens) and `end`, or `err`, `aborted`, `open`. A scene has a `name`, a `level`
(`gateway` or `stock`), its `traffic`, the engine's `levers` and `flags`, a `command` that makes trouble, a
`delay_ms` between gateway and engine, verdicts stated as `right`, and `without`: copies in which one
thing is taken away, each with the verdicts that are `right` if that takes 40% of the loss away.

Scene and copies are played one after the other, those of one engine together. The loss is measured by the
client: the time beyond the objective, summed over its requests. A scene is healthy if under 5% of them are
late, slow if over 15%; others are not scored by removal, nor is a slow one whose loss no copy takes away.

The last line is one JSON object: real_scenes, real_right, stock_scenes, stock_right, real_high,
real_high_right (by removal), stated_scenes, stated_right, stated_wrong_at_high, and a row per scene.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from known_scenes import SLO, STOCK, words_of
from planted.fleet import PHASEWISE, CommandFailed, Fleet, running_fleet
from planted.live import NOWHERE, proxied_gateway
from planted.processes import running
from script import command_line, interpreter, say, use_home

from phasewise.core.slo import parse_slo
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle

CAUSE_SHARE = 0.4
"""A cause has at least this share of the loss."""
HEALTHY_BELOW, SLOW_ABOVE = 0.05, 0.15
"""The shares of late requests below which a scene is healthy and above which it is slow."""
PENALTY_OBJECTIVES = 10.0
"""A failed request costs as much as a start that is late by so many TTFT objectives."""
STALL_TOKENS = 10
"""A gap as long as this many tokens at the objective's pace is late, however fast the rest is."""
PHASE_SHARE = 0.25
"""A true cause may be named for a phase if it has at least this share of what the phase lost."""
HERE = Path(__file__).resolve().parent
KEPT = HERE / "records" / "real_scenes"
SCENES = "scenes.json"
SETTLE_S, WINDOW_S = 8.0, 45.0
VERDICTS = frozenset({0, 3, 4, 5})
AS_PLANTED = "as planted"

Scene = dict[str, Any]
Loss = Mapping[str, float]


def main() -> None:
    """Play scenes, or judge what is kept."""
    parser = command_line(__doc__, quick="judge the first four kept scenes")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--play", type=Path, metavar="DIR", help="play scenes and keep them here")
    parser.add_argument("--as-planted", action="store_true", help="play no copies yet")
    parser.add_argument("--rejudge", type=Path, metavar="DIR", default=KEPT, help="judge what is kept here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenes alone")
    options = parser.parse_args()
    if options.play:
        use_home()
        play_all(options.folders, options.play, options.only, copies=not options.as_planted)
    folder = options.play or options.rejudge
    scenes = [scene for scene in kept(folder) if (folder / evidence_name(scene)).exists()]
    rows = [judge(scene, folder) for scene in scenes[: 4 if options.quick else None]]
    if not options.json:
        for row in rows:
            print(line_of(row))
    print(json.dumps(record(rows)))


# --- Playing.


def play_all(folders: Iterable[Path], to: Path, only: Sequence[str] | None, *, copies: bool) -> None:
    """Every scene and every copy of it that is not kept yet, those of one engine together."""
    to.mkdir(parents=True, exist_ok=True)
    known = {scene["name"]: scene for scene in kept(to)}
    for folder in folders:
        found = json.loads((folder / SCENES).read_text(encoding="utf-8"))
        for scene in found["scenes"]:
            client = os.path.relpath((folder / found["client"]).resolve(), HERE)
            known.setdefault(scene["name"], scene | {"client": client, "losses": {}})
    runs = [
        (scene, name, scene | copy)
        for scene in known.values()
        if not only or scene["name"] in only
        for name, copy in ((AS_PLANTED, {}), *((it["name"], _changes(it)) for it in scene["without"]))
        if name not in scene["losses"] and (copies or name == AS_PLANTED)
    ]
    runs.sort(key=lambda it: _engine(it[2]))
    for engine, group in groupby(runs, key=lambda it: _engine(it[2])):
        levers, flags = engine
        with running_fleet(levers, 1, fresh=False, logprobs=False, flags=flags) as fleet:
            for scene, name, setting in group:
                say(f"{scene['name']}, {name}: {SETTLE_S + WINDOW_S:g} s")
                file = to / evidence_name(scene) if name == AS_PLANTED else None
                try:
                    scene["losses"][name] = play(setting, fleet, file)
                except CommandFailed as error:
                    say(f"{scene['name']} failed: {error}")
                _keep(known.values(), to)


def _changes(copy: Scene) -> Scene:
    return {name: value for name, value in copy.items() if name not in {"name", "right"}}


def _engine(setting: Scene) -> tuple[str, tuple[str, ...]]:
    return setting.get("levers", ""), tuple(setting.get("flags", ()))


def play(setting: Scene, fleet: Fleet, file: Path | None, window_s: float = WINDOW_S) -> Loss:
    """The trouble, the traffic and a watch, whose evidence is kept in `file`; the loss that clients had."""
    fleet.wait_until_idle()
    (engine,) = fleet.engines
    spare = sorted(os.sched_getaffinity(0) - set(engine.cores)) or list(engine.cores)
    stock = setting["level"] == STOCK
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        url = engine.url if stock else fleet.url
        if setting.get("delay_ms"):
            url = stack.enter_context(proxied_gateway(fleet, int(setting["delay_ms"])))
        log = Path(folder) / "log.jsonl"
        lasting = ("--dur", f"{SETTLE_S + window_s + 15:g}", "--log", str(log))
        client = (sys.executable, str(HERE / setting["client"]), *shlex.split(setting["traffic"]))
        with _gently((*client, "--port", url.rpartition(":")[2], *lasting), spare):
            if setting.get("command"):
                stack.enter_context(_trouble(setting["command"], engine.pid, engine.cores, spare))
            time.sleep(SETTLE_S)
            began_s = time.time()
            target = (engine.url, "--steps-url", NOWHERE) if stock else (url,)
            _watch(target, file or Path(folder) / "evidence", window_s)
            ended_s = time.time()
            # A stopped engine must go on before its clients can end.
            stack.close()
        return loss_of(log, began_s, min(ended_s, began_s + window_s))


@contextlib.contextmanager
def _gently(command: Sequence[str], cores: Sequence[int]) -> Iterator[None]:
    """A client that is asked to end, so that it can write its log."""
    with running(command, cores) as client:
        yield
        client.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(10.0)


@contextlib.contextmanager
def _trouble(command: str, session: int, cores: Sequence[int], spare: Sequence[int]) -> Iterator[None]:
    """The scene's own command, ended with everything it started; then the engine goes on in any case."""
    known = {
        "ENGINE_SESSION": session,
        "ENGINE_CORES": ",".join(map(str, cores)),
        "SPARE_CORES": ",".join(map(str, spare)),
        "SETTLE_S": f"{SETTLE_S:g}",
        "WINDOW_S": f"{WINDOW_S:g}",
    }
    words = ("env", *(f"{name}={value}" for name, value in known.items()), "sh", "-c", command)
    try:
        with running(words):
            yield
    finally:
        subprocess.run(("kill", "-CONT", "--", f"-{session}"), check=False)


def _watch(target: Sequence[str], file: Path, window_s: float) -> None:
    """A user who diagnoses and keeps the evidence."""
    options = ("--window", str(window_s), "--slo", SLO, "--json", "--save-evidence", str(file))
    done = subprocess.run(
        [*PHASEWISE, "diagnose", *target, *options], capture_output=True, text=True, check=False
    )
    if done.returncode not in VERDICTS:
        raise CommandFailed(done.stderr[-2000:])


def loss_of(log: Path, began_s: float, ended_s: float) -> Loss:
    """What clients lost in the window: seconds beyond the objective by phase, requests, and late ones."""
    slo = parse_slo(SLO)
    found = {"slow_to_start": 0.0, "slow_to_stream": 0.0, "failing": 0.0, "requests": 0, "late": 0}
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    for it in map(json.loads, filter(None, lines)):
        if it["t"] > ended_s or it.get("end", ended_s) < began_s or it.get("aborted"):
            continue
        start_s = (it["ttft"] if it.get("ttft") is not None else ended_s - it["t"]) - slo.ttft_s
        if it.get("ttft") is None and "err" not in it and start_s <= 0:
            continue
        tokens, tpot_s, worst_s = it.get("n") or 0, it.get("tpot") or 0.0, it.get("worst") or 0.0
        over_all_s = (tokens - 1) * (tpot_s - slo.tpot_s) if tokens >= 4 else 0.0
        stalled_s = worst_s - slo.tpot_s if worst_s >= STALL_TOKENS * slo.tpot_s else 0.0
        lost = {
            "slow_to_start": max(0.0, start_s) if "err" not in it else 0.0,
            "slow_to_stream": max(0.0, over_all_s, stalled_s),
            "failing": PENALTY_OBJECTIVES * slo.ttft_s if "err" in it else 0.0,
        }
        for phase, seconds in lost.items():
            found[phase] += seconds
        found["requests"] += 1
        found["late"] += any(lost.values())
    return {name: round(value, 3) for name, value in found.items()}


def _keep(scenes: Iterable[Scene], folder: Path) -> None:
    lines = [json.dumps(scene) for scene in scenes]
    (folder / SCENES).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def kept(folder: Path) -> list[Scene]:
    """The scenes that were played into a folder."""
    path = folder / SCENES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def evidence_name(scene: Scene) -> str:
    """The file of a scene's evidence."""
    return f"{scene['name']}.{scene['level']}.gz"


# --- Judging.


def judge(scene: Scene, folder: Path) -> dict[str, Any]:
    """What was said of a scene, what removal shows, and whether that and what was stated agree with it."""
    observed, slo = read_bundle((folder / evidence_name(scene)).read_bytes())
    verdict = diagnose(evidence_of(observed), slo, Known())
    said = words_of(verdict)
    state, true = truth_of(scene)
    return {
        "scene": scene["name"],
        "level": scene["level"],
        "said": said,
        "confidence": None if verdict.top is None else verdict.top.confidence,
        "stated": scene["right"],
        "stated_right": said in scene["right"],
        "state": state,
        "true": true,
        "right": said in true if true else None,
    }


def truth_of(scene: Scene) -> tuple[str, list[str]]:
    """Whether it is healthy or slow, and the verdicts that removal shows to be true, if it shows any."""
    planted = scene["losses"].get(AS_PLANTED)
    if planted is None or not planted["requests"]:
        return "not measured", []
    late = planted["late"] / planted["requests"]
    if late < HEALTHY_BELOW:
        return "healthy", ["healthy"]
    if late <= SLOW_ABOVE:
        return "between", []
    whole_s = total_s(planted)
    true = [
        said
        for it in scene["without"]
        if it["name"] in scene["losses"]
        and total_s(scene["losses"][it["name"]]) <= (1.0 - CAUSE_SHARE) * whole_s
        for said in it["right"]
        if planted.get(said.partition("/")[0], 0.0) >= PHASE_SHARE * whole_s
    ]
    return "slow", list(dict.fromkeys(true))


def total_s(loss: Loss) -> float:
    return loss["slow_to_start"] + loss["slow_to_stream"] + loss["failing"]


def line_of(row: Mapping[str, Any]) -> str:
    """A row for people."""
    by_removal = {True: "right", False: "WRONG", None: "-"}[row["right"]]
    by_statement = "right" if row["stated_right"] else "WRONG"
    return (
        f"{row['scene']:34} {row['level']:8} removal {by_removal:6} stated {by_statement:6} "
        f"{row['said']} ({row['confidence']})"
    )


def record(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all rows."""
    scored = [row for row in rows if row["right"] is not None]
    high = [row for row in scored if row["confidence"] == "high"]
    stock = [row for row in scored if row["level"] == STOCK]
    return {
        "real_scenes": len(scored),
        "real_right": sum(row["right"] for row in scored),
        "stock_scenes": len(stock),
        "stock_right": sum(row["right"] for row in stock),
        "real_high": len(high),
        "real_high_right": sum(row["right"] for row in high),
        "real_healthy": sum(row["state"] == "healthy" for row in scored),
        "stated_scenes": len(rows),
        "stated_right": sum(row["stated_right"] for row in rows),
        "stated_wrong_at_high": sum(not row["stated_right"] for row in rows if row["confidence"] == "high"),
        "python": interpreter(),
        "rows": list(rows),
    }


if __name__ == "__main__":
    main()

"""Asks for the same verdict three times in a row, as a newcomer would, and counts how often it changes.

    python benchmarks/first_contact.py [--only NAME ...] [--client FILE] [--keep DIR] [--quick] [--json]

Six live scenes on the real engine, through the gateway with the step record, each watched three times while
its traffic goes on; the first window of all is the first traffic of a new engine. Then `diagnose --probe`
three times: cold, and twice warm. A flip is a verdict with another ruling or cause than the one before it in
the same scene. Every screen and page is searched for contradictions. With `--quick` one scene is watched
twice.

The last line is one JSON object: runs, verdict_flips, contradictions, and a row per run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from known_scenes import CLIENT, SCENES, SLO, Scene, words_of
from planted.contradictions import contradictions
from planted.fleet import PHASEWISE, CommandFailed, Fleet, running_fleet
from planted.processes import cpu_hogs, running
from script import command_line, interpreter, use_home

from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.gather.watch import LONGEST_S
from phasewise.diagnosis.observed.bundle import read_bundle

HERE = Path(__file__).resolve().parent
LIVE = ("light", "long_tenant_1", "salted_prefix", "many_streams", "cpu_hogs", "long_outputs")
PROBE = "probe"
TIMES, QUICK_TIMES = 3, 2
SETTLE_S = 8.0
VERDICTS = frozenset({0, 3, 4, 5})


def main() -> None:
    """Play, judge and print the record."""
    parser = command_line(__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=(*LIVE, PROBE))
    parser.add_argument("--client", type=Path, metavar="FILE", default=CLIENT, help="the traffic client")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the windows' evidence here")
    options = parser.parse_args()
    wanted = options.only or ((LIVE[0],) if options.quick else (*LIVE, PROBE))
    times = QUICK_TIMES if options.quick else TIMES
    use_home()
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder_of_run,
        running_fleet("", 1, fresh=True, logprobs=False) as fleet,
    ):
        folder = options.keep or Path(folder_of_run)
        folder.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            files = [folder / f"{name}.{index}" for index in range(times)]
            play(name, fleet, files, options.client)
            for file in files:
                rows.append(row_of(name, file))
                if not options.json:
                    print(rows[-1], file=sys.stderr, flush=True)
    print(json.dumps(record(rows)))


def play(name: str, fleet: Fleet, files: Sequence[Path], client: Path) -> None:
    """One verdict after the other, with their evidence in these files."""
    fleet.wait_until_idle()
    if name == PROBE:
        for file in files:
            ask(fleet, file, "--probe")
        return
    scene = next(it for it in SCENES if it.name == name)
    with traffic(scene, fleet, SETTLE_S + len(files) * (LONGEST_S + 15), client):
        time.sleep(SETTLE_S)
        for file in files:
            ask(fleet, file)


@contextlib.contextmanager
def traffic(scene: Scene, fleet: Fleet, seconds: float, client: Path) -> Iterator[None]:
    """The scene's client, and its trouble if it has one."""
    (engine,) = fleet.engines
    port = fleet.url.rpartition(":")[2]
    command = (sys.executable, str(client), *scene.traffic.split(), "--port", port)
    lasting = ("--dur", str(seconds), "--log", os.devnull)
    spare = sorted(os.sched_getaffinity(0) - set(engine.cores))
    with contextlib.ExitStack() as stack:
        if scene.trouble == "hogs":
            stack.enter_context(cpu_hogs(3, engine.cores))
        stack.enter_context(running((*command, *lasting), spare))
        yield


def ask(fleet: Fleet, file: Path, *how: str) -> None:
    """What a user types."""
    options = ("--slo", SLO, "--json", "--save-evidence", str(file))
    done = subprocess.run(
        [*PHASEWISE, "diagnose", fleet.url, *how, *options], capture_output=True, text=True, check=False
    )
    if done.returncode not in VERDICTS:
        raise CommandFailed(done.stderr[-2000:])


def row_of(name: str, file: Path) -> dict[str, Any]:
    """A verdict in what is judged of it."""
    observed, slo = read_bundle(file.read_bytes())
    evidence = evidence_of(observed)
    verdict = diagnose(evidence, slo, Known())
    return {
        "scene": name,
        "said": words_of(verdict),
        "confidence": None if verdict.top is None else verdict.top.confidence,
        "contradictions": list(contradictions(verdict, evidence)),
    }


def record(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rows."""
    said = [(row["scene"], row["said"]) for row in rows]
    flips = sum(here[0] == there[0] and here != there for here, there in pairwise(said))
    return {
        "runs": len(rows),
        "verdict_flips": flips,
        "contradictions": sum(len(row["contradictions"]) for row in rows),
        "python": interpreter(),
        "rows": list(rows),
    }


if __name__ == "__main__":
    main()

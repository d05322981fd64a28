"""Judges verdicts on a real llama.cpp server, whose faults were planted with only the docs at hand.

    python benchmarks/engine_verdicts.py [--play DIR] [--rejudge DIR] [--only NAME ...] [--quick] [--json]

benchmarks/docs_only/llama has the scenes, in the form that real_scenes.py describes, and a traffic client. A
scene's `flags` are those of the server, which runs on all cores of this machine; its `level` is `direct` or
`gateway`, its `command` empty or `hogs N`: so many busy loops beside it. Each is played on a new server, and
watched once it has settled. `--play` plays them and keeps the evidence in DIR; without it, what is kept is
judged again. With `--quick` one scene is played for a short time.

The last line is one JSON object: llama_cpp {runs, right, healthy, false_alarms}, the share of processor time
that a hypervisor took, and a row per scene. A verdict is right if it is the stated one; a false alarm is any
other verdict than `healthy` on a healthy scene.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from known_scenes import words_of
from planted.fleet import PHASEWISE, CommandFailed, wait_for
from planted.processes import cpu_hogs, running
from script import command_line, interpreter, say, use_home
from stress.processes import free_port

import phasewise
from phasewise.core.slo import parse_slo
from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle
from phasewise.diagnosis.verdict import Verdict
from phasewise.fleet.engines.known_models import resolve_gguf

HERE = Path(__file__).resolve().parent
DOCS_ONLY = HERE / "docs_only" / "llama"
KEPT = HERE / "records" / "llama"
SLO = "ttft=1.5s,tpot=100ms"
SETTLE_S, LONGEST_S = 8.0, 60.0
QUICK_SETTLE_S, QUICK_WINDOW_S = 3.0, 8.0
VERDICTS = frozenset({0, 3, 4, 5})
MODEL = "smollm2-135m"
HEALTHY = "healthy"

Scene = Mapping[str, Any]


def main() -> None:
    """Play scenes, or judge what is kept."""
    parser = command_line(__doc__, quick="play one scene, for a short time")
    parser.add_argument("--play", type=Path, metavar="DIR", help="play scenes and keep their evidence here")
    parser.add_argument("--rejudge", type=Path, metavar="DIR", default=KEPT, help="judge what is kept here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenes alone")
    options = parser.parse_args()
    use_home()
    known = json.loads((DOCS_ONLY / "scenes.json").read_text(encoding="utf-8"))["scenes"]
    scenes = [it for it in known if not options.only or it["name"] in options.only]
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.play or (Path(scratch) if options.quick else options.rejudge)
        if options.play or options.quick:
            folder.mkdir(parents=True, exist_ok=True)
            scenes = scenes[:1] if options.quick else scenes
            for scene in scenes:
                if not options.json:
                    say(f"{scene['name']}: up to {SETTLE_S + LONGEST_S:g} s")
                play(scene, folder / file_of(scene), quick=options.quick)
        kept = [scene for scene in scenes if (folder / file_of(scene)).exists()]
        rows = [judge(scene, folder / file_of(scene)) for scene in kept]
    if not options.json:
        for row in rows:
            mark = "ok " if row["right"] else "   "
            accepts = ", ".join(row["accepts"])
            print(f"{mark} {row['name']}: {row['said']} ({row['confidence']}); right: {accepts}")
    print(json.dumps(record(rows)))


def file_of(scene: Scene) -> str:
    """Where a scene's evidence is kept."""
    return f"{scene['name']}.evidence"


# --- Playing.


def play(scene: Scene, file: Path, *, quick: bool) -> None:
    """A new server, its trouble and traffic, and a user who watches it, for as long as usual."""
    settle_s = QUICK_SETTLE_S if quick else SETTLE_S
    window = ("--window", f"{QUICK_WINDOW_S:g}") if quick else ()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(server(scene["flags"]))
        url = f"http://127.0.0.1:{port}"
        if scene["level"] == "gateway":
            url = stack.enter_context(gateway(url))
        if scene["command"]:
            stack.enter_context(cpu_hogs(int(scene["command"].split()[1]), sorted(os.sched_getaffinity(0))))
        client = (sys.executable, str(DOCS_ONLY / "client.py"), *scene["traffic"])
        lasting = ("--dur", f"{settle_s + LONGEST_S + 20:g}", "--log", os.devnull)
        stack.enter_context(running((*client, "--port", url.rpartition(":")[2], *lasting)))
        time.sleep(settle_s)
        options = ("--slo", SLO, *window, "--json", "--save-evidence", str(file))
        done = subprocess.run(
            [*PHASEWISE, "diagnose", url, *options], capture_output=True, text=True, check=False
        )
        if done.returncode not in VERDICTS:
            raise CommandFailed(done.stderr[-2000:])


@contextlib.contextmanager
def server(flags: Sequence[str]) -> Iterator[int]:
    """A llama.cpp with these flags; its metrics are on unless they say otherwise."""
    port = free_port()
    model = resolve_gguf(MODEL, Path(os.environ["PHASEWISE_HOME"]))
    command = (sys.executable, "-m", "phasewise.fleet.engines.llama_server", model, "--alias", MODEL)
    with running((*command, "--port", str(port), "--metrics", *flags)):
        wait_for(f"http://127.0.0.1:{port}/health")
        yield port


@contextlib.contextmanager
def gateway(engine: str) -> Iterator[str]:
    """A gateway in front of it."""
    port = free_port()
    with running((*PHASEWISE, "gateway", engine, "--port", str(port))):
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"


# --- Judging.


def judge(scene: Scene, file: Path) -> dict[str, Any]:
    """What is said of a scene's evidence, and whether it was stated beforehand."""
    observed, _ = read_bundle(file.read_bytes())
    verdict = diagnose(evidence_of(observed), parse_slo(SLO), Known())
    said = words_of(verdict)
    first, _, rival = said.partition(" or ")
    # Of two names the first counts.
    return {
        "name": scene["name"],
        "level": scene["level"],
        "said": said,
        "confidence": None if verdict.top is None else verdict.top.confidence,
        "first_fix": first_fix(verdict),
        "accepts": scene["right"],
        "right": first in scene["right"],
        "rival": rival or None,
        "stolen_share": observed.stolen_share,
    }


def first_fix(verdict: Verdict) -> str | None:
    """The flag of the first fix, or its words."""
    fixes = () if verdict.advice is None else verdict.advice.fixes
    return next((fix.engine_flag or fix.what for fix in fixes), None)


def record(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rows."""
    healthy = [row for row in rows if HEALTHY in row["accepts"]]
    stolen = [row["stolen_share"] for row in rows if row["stolen_share"] is not None]
    return {
        "llama_cpp": {
            "runs": len(rows),
            "right": sum(row["right"] for row in rows),
            "healthy": len(healthy),
            "false_alarms": sum(not row["right"] for row in healthy),
        },
        "stolen_share": round(sum(stolen) / len(stolen), 3) if stolen else None,
        "python": interpreter(),
        "phasewise": phasewise.__version__,
        "rows": list(rows),
    }


if __name__ == "__main__":
    main()

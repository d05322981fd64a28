"""Plays scenes planted with only the docs at hand on the real engine, keeps their evidence, and judges it.

    python benchmarks/known_scenes.py --play DIR [--only NAME ...] [--client FILE]    evidence into DIR
    python benchmarks/known_scenes.py [--rejudge DIR] [--json]                        verdicts on what is kept

The scenes were planted with only the docs at hand, and each states which verdicts are right. Their
traffic comes from a client that shares no code with phasewise (`--client`). A window is seen at up to two
levels: through the gateway with the step record, and as a stock engine without either, from its /metrics
alone. The kept files are judged again by whatever rules there are, without an engine: they are known by now,
so this is a test against regressions and says nothing about scenes that nobody has seen.

The last line is one JSON object: scenes, right, wrong_at_high, by level, and a row per scene.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from planted.fleet import PHASEWISE, CommandFailed, Fleet, running_fleet
from planted.live import NOWHERE, proxied_gateway
from planted.processes import cpu_hogs, running
from script import command_line, interpreter, say, use_home

from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle
from phasewise.diagnosis.verdict import Verdict

HERE = Path(__file__).resolve().parent
KEPT = HERE / "records" / "known_scenes"
CLIENT = HERE.parent.parent / "shared" / "blind" / "traffic.py"
SLO = "ttft=1.5s,tpot=200ms"
SETTLE_S, WINDOW_S = 8.0, 26.0
GATEWAY, STOCK = "gateway", "stock"
BOTH = (GATEWAY, STOCK)
KV_OF_24_BLOCKS = "135MiB"
"""24 blocks of 128 tokens of the demo model in float32."""
PROXY_MS = 1_500
STOPS = "stops"
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Scene:
    """A scene and what is right of it: each of `right` is a ruling, with a slash and its cause if any.

    `traffic` are the client's arguments. `direct` traffic goes to the engine, past the gateway.
    """

    name: str
    traffic: str
    right: tuple[str, ...]
    levels: tuple[str, ...] = BOTH
    levers: str = ""
    flags: tuple[str, ...] = ()
    trouble: str = ""
    direct: bool = False
    right_stock: tuple[str, ...] = ()

    @property
    def engine(self) -> tuple[str, tuple[str, ...]]:
        """Scenes with equal ones share an engine."""
        return self.levers, self.flags

    def expected(self, level: str) -> tuple[str, ...]:
        """What is right at that level of observation."""
        return self.right_stock if level == STOCK and self.right_stock else self.right


CALM = ("healthy", "slow_to_stream/decode_bound_by_weights_or_overhead")
"""With nothing planted, a token may take long on a slow machine even alone."""
STALLED = ("slow_to_stream/prefill_chunks_stall_decodes", "slow_to_start/long_prompts")
PAUSED = ("slow_to_start/engine_pauses", "slow_to_stream/engine_pauses")
HUNG = ("slow_to_start/engine_hung", "slow_to_stream/engine_hung", "failing/engine_hung")
STARVED = ("slow_to_start/engine_starved_of_cpu", "slow_to_stream/engine_starved_of_cpu")
SALTED = ("slow_to_start/prefix_salted",)
EITHER = (*SALTED, "slow_to_start/long_prompts or prefix_salted")
"""Without the prompts' text, long ones look like ones whose beginnings differ."""
KV_FULL = ("slow_to_start/kv_memory_exhausted", "slow_to_stream/kv_memory_exhausted")
CAPPED = ("slow_to_start/batch_cap_too_low",)
BURSTS = ("slow_to_start/bursts",)
FORMAT = ("slow_to_start/slow_number_format", "slow_to_stream/slow_number_format")

SCENES = (
    Scene("light", "light", CALM),
    Scene("long_tenant_1", "longtenant", STALLED),
    Scene("long_tenant_2", "longtenant --n 4", STALLED, (GATEWAY,)),
    Scene("long_tenant_3", "longtenant --n 5", STALLED, (GATEWAY,)),
    Scene("salted_prefix", "ragts --plen 350 --rate 0.25", SALTED, right_stock=EITHER),
    Scene(
        "many_streams", "batch", ("slow_to_start/overload", "slow_to_stream/batch_cap_too_high"), (GATEWAY,)
    ),
    Scene("cpu_hogs", "closed", STARVED, trouble="hogs"),
    Scene("slow_reader", "slowread", ("healthy",), (GATEWAY,)),
    Scene("long_outputs", "reason --out 250", ("healthy",)),
    Scene("bursts", "burst", BURSTS),
    Scene("stopped_twice", "light", PAUSED, trouble=STOPS),
    Scene("stopped_at_the_end", "light", HUNG, (GATEWAY,), trouble=STOPPED),
    Scene("slow_proxy", "light", ("slow_to_start/network_or_proxy",), trouble="proxy", right_stock=CALM),
    Scene("clients_leave", "abort", ("failing/clients_cancel",)),
    Scene("prompts_too_long", "toolong", ("failing/requests_rejected",)),
    Scene("cap_of_3", "closed --n 8", CAPPED, (GATEWAY,), levers="max_num_seqs: 3"),
    Scene("cap_of_4", "closed", CAPPED, (STOCK,), levers="max_num_seqs: 4", direct=True),
    Scene(
        *("small_kv_long_outputs", "batch", KV_FULL, (STOCK,)),
        levers=f"kv_cache_memory_bytes: {KV_OF_24_BLOCKS}, max_model_len: 2048",
        direct=True,
    ),
    Scene("bf16_without_bf16", "light", FORMAT, (GATEWAY,), flags=("--dtype", "bfloat16")),
)


def main() -> None:
    """Play scenes, or judge what is kept."""
    parser = command_line(__doc__, quick="the first four kept windows")
    parser.add_argument(
        "--play", type=Path, metavar="DIR", help="play the scenes and keep their evidence here"
    )
    parser.add_argument(
        "--rejudge", type=Path, metavar="DIR", default=KEPT, help="judge the evidence kept here"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenes alone")
    parser.add_argument("--client", type=Path, metavar="FILE", default=CLIENT, help="the traffic client")
    options = parser.parse_args()
    scenes = [scene for scene in SCENES if not options.only or scene.name in options.only]
    if options.play:
        use_home()
        play_all(scenes, options.play, options.client)
    judged = (row for scene in scenes for row in judge(scene, options.play or options.rejudge))
    rows = list(islice(judged, 4) if options.quick else judged)
    if not options.json:
        for row in rows:
            mark = "right" if row["right"] else "WRONG"
            print(f"{row['scene']:26} {row['level']:8} {mark:6} {row['said']} ({row['confidence']})")
    print(json.dumps(record(rows)))


# --- Playing.


def play_all(scenes: Sequence[Scene], folder: Path, client: Path) -> None:
    """Every scene, those of one engine after each other."""
    folder.mkdir(parents=True, exist_ok=True)
    for (levers, flags), group in groupby(scenes, key=lambda scene: scene.engine):
        with running_fleet(levers, 1, fresh=False, logprobs=False, flags=flags) as fleet:
            for scene in group:
                say(f"{scene.name}: settling {SETTLE_S:g} s, watching {WINDOW_S:g} s")
                try:
                    play(scene, fleet, folder, client)
                except CommandFailed as error:
                    say(f"{scene.name} failed: {error}")


def play(scene: Scene, fleet: Fleet, folder: Path, client: Path) -> None:
    """The trouble, the traffic, and a watch at each level."""
    fleet.wait_until_idle()
    (engine,) = fleet.engines
    with contextlib.ExitStack() as stack:
        if scene.trouble == "proxy":
            url = stack.enter_context(proxied_gateway(fleet, PROXY_MS))
        else:
            url = engine.url if scene.direct else fleet.url
        if scene.trouble == "hogs":
            stack.enter_context(cpu_hogs(3, engine.cores))
        port = url.rpartition(":")[2]
        lasting = ("--dur", str(SETTLE_S + WINDOW_S + 20), "--log", os.devnull)
        spare = sorted(os.sched_getaffinity(0) - set(engine.cores))
        stack.enter_context(
            running((sys.executable, str(client), *scene.traffic.split(), "--port", port, *lasting), spare)
        )
        time.sleep(SETTLE_S)
        targets = {GATEWAY: (url,), STOCK: (engine.url, "--steps-url", NOWHERE)}
        watches = [watching(targets[level], folder / f"{scene.name}.{level}.gz") for level in scene.levels]
        with stopped(engine.pid, scene.trouble):
            said = [(watch, watch.communicate()[1]) for watch in watches]
    for watch, words in said:
        if watch.returncode not in {0, 3, 4, 5}:
            raise CommandFailed(words[-2000:])


def watching(target: Sequence[str], file: Path) -> subprocess.Popen[str]:
    """A user who diagnoses and keeps the evidence."""
    options = ("--window", str(WINDOW_S), "--slo", SLO, "--json", "--save-evidence", str(file))
    return subprocess.Popen(
        [*PHASEWISE, "diagnose", *target, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def stopped(session: int, trouble: str) -> Iterator[None]:
    """The engine stands still: twice for some seconds, or from late in the window until after its end."""
    # The engine's own session: when it is stopped, so is everything in it.
    if trouble == STOPS:
        for run_s, stop_s in ((3.0, 11.0), (2.0, 6.0)):
            time.sleep(run_s)
            os.killpg(session, signal.SIGSTOP)
            time.sleep(stop_s)
            os.killpg(session, signal.SIGCONT)
    elif trouble == STOPPED:
        time.sleep(WINDOW_S - 11.0)
        os.killpg(session, signal.SIGSTOP)
    try:
        yield
    finally:
        if trouble == STOPPED:
            os.killpg(session, signal.SIGCONT)


# --- Judging.


def judge(scene: Scene, folder: Path) -> Iterator[dict[str, object]]:
    """A row per kept window of the scene."""
    for level in scene.levels:
        file = folder / f"{scene.name}.{level}.gz"
        if not file.exists():
            continue
        observed, slo = read_bundle(file.read_bytes())
        verdict = diagnose(evidence_of(observed), slo, Known())
        said = words_of(verdict)
        yield {
            "scene": scene.name,
            "level": level,
            "said": said,
            "right": said in scene.expected(level),
            "confidence": None if verdict.top is None else verdict.top.confidence,
            "expected": scene.expected(level),
        }


def words_of(verdict: Verdict) -> str:
    """The ruling, and its cause after a slash."""
    if verdict.top is None:
        return verdict.ruling
    rival = "" if verdict.top.rival is None else f" or {verdict.top.rival}"
    return f"{verdict.ruling}/{verdict.top.cause}{rival}"


def record(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    """The figures of all rows."""
    high = [row for row in rows if row["confidence"] == "high"]
    return {
        "scenes": len(rows),
        "right": sum(bool(row["right"]) for row in rows),
        "high": len(high),
        "wrong_at_high": sum(not row["right"] for row in high),
        "stock_scenes": sum(row["level"] == STOCK for row in rows),
        "stock_right": sum(bool(row["right"]) for row in rows if row["level"] == STOCK),
        "python": interpreter(),
        "rows": list(rows),
    }


if __name__ == "__main__":
    main()

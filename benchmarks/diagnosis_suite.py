"""Plants causes on real and on fake engines, asks for a verdict on each, and counts how often it is right.

    python benchmarks/diagnosis_suite.py [--set tune|judge] [--cases NAME ...] [--seeds N] [--quick]
                                         [--fake-only | --real-only] [--json] [--home DIR] [--evidence DIR]

A real run is what a user would do: `phasewise up` with a fleet file, traffic, and `phasewise diagnose` on the
gateway while it flows (or `phasewise bench --diagnose`, where the load generator itself is at fault). Fake
runs play the same causes on virtual engines, over a wider grid of sizes.

There are two sets of runs. Rules are made and fixed on `tune`; `judge` has other seeds and other sizes, and
its runs are not looked at while rules change: who fixes a rule after a look at a judged run has turned that
into a tuning run. Real sets differ by size and seed, fake ones by seed only. What each case expects stands in
planted/cases.py. Every full run of either set is kept in records/diagnosis_runs.jsonl with the commit it was
made at, the wrong ones too; only runs from before causes had their present names are not there. The cases and
the rules come from the same hands: this shows how well planted causes are separated on this machine, not how
often a verdict is right in the wild.

The last line is one JSON object, printed whatever failed before: real_runs, real_right, fake_runs,
fake_right, no_verdict (counted as wrong), false_alarms (verdicts other than healthy where nothing was
planted), unexplained_ttft and unexplained_itl (what no clock saw, in healthy real runs, as a share and in ms,
typical and worst), within_bounds (in how many of those at most 5% or 10 ms of TTFT and 5% of a token's time
are unexplained at the median; `residuals` has each), delays (what the unexplained and all other parts of TTFT
grew by when a proxy of ours held answers back by a known time), the confusion matrix and a row per run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from random import Random

from planted.cases import CASES, HEALTHY, Case, RunSet, draw
from planted.delays import plant_delays
from planted.fake_grid import SEEDS as FAKE_SEEDS
from planted.fake_grid import grid, verdicts
from planted.fleet import CommandFailed, Fleet, running_fleet
from planted.live import judge_live
from planted.progress import BESIDE_S, START_S, Progress
from planted.tally import (
    FAKE,
    NO_VERDICT,
    REAL,
    Run,
    Verdict,
    itl_unexplained,
    runners_up,
    said_by,
    summary,
    table,
    ttft_unexplained,
)

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records" / "diagnosis_runs.jsonl"
SEEDS, HEALTHY_SEEDS = 3, 2
PLAIN = ("", 1, False)
"""One engine with its own defaults, warm."""
QUICK_CASES = ("healthy_closed", "long_prompts")
QUICK_SETTLE_S, QUICK_WINDOW_S = 2.0, 6.0
DELAY_ROUNDS, QUICK_DELAY_ROUNDS = 15, 1

Numbered = tuple[Case, int]
"""A case and the number of its seed."""


def main() -> None:
    """Run everything and print the record."""
    options = parse_options()
    os.environ.setdefault("PHASEWISE_HOME", str(options.home))
    runs: list[Run] = []
    delays: list[dict[str, float]] = []
    try:
        for run in chain(
            () if options.real_only else fake_runs(options),
            () if options.fake_only else real_runs(options, delays),
        ):
            runs.append(run)
            if not options.quick:
                keep(run)
    finally:
        show(runs, delays, options)
    if unjudged := sum(run.said == NO_VERDICT for run in runs):
        raise SystemExit(f"{unjudged} of {len(runs)} runs came to no verdict")


def show(runs: list[Run], delays: list[dict[str, float]], options: argparse.Namespace) -> None:
    """Print the record of what was run, and what a person wants of it."""
    record = {"set": options.set, "quick": options.quick, **summary(runs), "delays": delays}
    if not options.json:
        print(table(runs))
        hidden = ("confusion", "rows")
        print(json.dumps({key: value for key, value in record.items() if key not in hidden}, indent=2))
    print(json.dumps(record), flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--set", type=RunSet, choices=list(RunSet), help="default judge, and tune for the short form"
    )
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], help="only these")
    parser.add_argument(
        "--seeds", type=int, help=f"runs of each case (default {SEEDS}, healthy {HEALTHY_SEEDS})"
    )
    parser.add_argument("--first-seed", type=int, default=1, help="where seeds begin")
    parser.add_argument("--quick", action="store_true", help="a few short runs, to show that it runs")
    parser.add_argument("--fake-only", action="store_true", help="no real engine")
    parser.add_argument("--real-only", action="store_true", help="no virtual engines")
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    parser.add_argument("--evidence", type=Path, help="keep the raw evidence of every real run there")
    default_home = HERE.parent / ".phasewise"
    parser.add_argument(
        "--home", type=Path, default=default_home, help="where engine and model are installed"
    )
    options = parser.parse_args()
    # What runs at every change must not use up what rules are judged by.
    options.set = options.set or (RunSet.TUNE if options.quick else RunSet.JUDGE)
    return options


def real_runs(options: argparse.Namespace, delays: list[dict[str, float]]) -> Iterator[Run]:
    """Every real run; cases that need the same engine share one start of it. `delays` is added to."""
    starts = list(starts_of(options))
    progress = Progress(sum(START_S + sum(planned_s(case, options) for case, _ in it) for it in starts))
    began_s = time.monotonic()
    for start in starts:
        yield from judged_start(start, options, delays, progress, began_s)


def starts_of(options: argparse.Namespace) -> Iterator[list[Numbered]]:
    """The runs that were asked for, those together that one start of engines serves."""
    chosen = options.cases or (QUICK_CASES if options.quick else [case.name for case in CASES])
    cases = [case for case in CASES if case.name in chosen]
    for (_, _, fresh), group in groupby(cases, fleet_of):
        numbered = [(case, number) for case in group for number in seeds_of(case, options)]
        yield from [[each] for each in numbered] if fresh else [numbered]


def fleet_of(case: Case) -> tuple[str, int, bool]:
    """What a case needs of its engines."""
    return case.levers, case.replicas, case.fresh


def judged_start(
    start: list[Numbered],
    options: argparse.Namespace,
    delays: list[dict[str, float]],
    progress: Progress,
    began_s: float,
) -> Iterator[Run]:
    """The runs of one start. If it fails, those that it still owes have no verdict, and others go on."""
    levers, replicas, fresh = fleet = fleet_of(start[0][0])
    owed = deque(start)
    say(f"starting {replicas} engine(s) with levers {{{levers}}}")
    try:
        logprobs = any(case.asks_for_logprobs for case, _ in start)
        with running_fleet(levers, replicas, fresh=fresh, logprobs=logprobs) as engines:
            progress.done_s += START_S
            while owed:
                judged = real_run(*owed[0], engines, options)
                progress.done_s += planned_s(owed.popleft()[0], options)
                say(f"about {progress.left_s(time.monotonic() - began_s) / 60:.0f} min left")
                yield judged
            if fleet == PLAIN and not options.cases:
                rounds = QUICK_DELAY_ROUNDS if options.quick else DELAY_ROUNDS
                delays += asyncio.run(plant_delays(engines.engines[0], rounds, Random(options.first_seed)))
    except (CommandFailed, OSError) as failure:
        say(f"this start failed: {failure}")
        for case, number in owed:
            drawn = draw(case, options.set, number)
            yield row(REAL, options.set, case.name, drawn.seed, case.expected, None, stock=case.stock)


def planned_s(case: Case, options: argparse.Namespace) -> float:
    """About how long a run takes."""
    return BESIDE_S + sum(times_of(case, options))


def times_of(case: Case, options: argparse.Namespace) -> tuple[float, float]:
    """How long a run settles and is watched, in seconds."""
    return (QUICK_SETTLE_S, QUICK_WINDOW_S) if options.quick else (case.settle_s, case.window_s)


def seeds_of(case: Case, options: argparse.Namespace) -> range:
    """The seeds of a case; nothing is planted in two of them, which have fewer each."""
    default = 1 if options.quick else HEALTHY_SEEDS if HEALTHY in case.expected else SEEDS
    return range(options.first_seed, options.first_seed + (options.seeds or default))


def real_run(case: Case, number: int, fleet: Fleet, options: argparse.Namespace) -> Run:
    """One run and its row."""
    drawn = draw(case, options.set, number)
    evidence = options.evidence / f"{case.name}-{options.set}-{number}.json" if options.evidence else None
    verdict = None
    try:
        verdict = judge_live(drawn, fleet, *times_of(case, options), evidence)
    except (CommandFailed, OSError) as failure:
        # No verdict is a wrong one, and no reason to throw away the runs before and after it.
        say(str(failure))
    return row(REAL, options.set, case.name, drawn.seed, case.expected, verdict, stock=case.stock)


def fake_runs(options: argparse.Namespace) -> Iterator[Run]:
    """Every virtual run."""
    seeds = options.seeds or (1 if options.quick else FAKE_SEEDS)
    for cell, verdict in verdicts(grid(options.set, seeds, quick=options.quick)):
        expected = frozenset({cell.cause})
        yield row(FAKE, options.set, cell.cause, cell.seed, expected, verdict, cell.machine)


def row(
    kind: str,
    run_set: str,
    case: str,
    seed: int,
    expected: frozenset[str],
    verdict: Verdict | None,
    machine: str = "",
    *,
    stock: bool = False,
) -> Run:
    """What was said of a run, told as it happens."""
    said = said_by(verdict)
    right = said in expected
    wanted = "" if right else f"   <-- expected {'/'.join(sorted(expected))}"
    say(f"{kind} {case}{f' ({machine})' if machine else ''} #{seed}: {said}{wanted}")
    return Run(
        kind=kind,
        run_set=run_set,
        case=case,
        machine=machine,
        seed=seed,
        expected=tuple(sorted(expected)),
        said=said,
        right=right,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit(),
        ttft=ttft_unexplained(verdict),
        itl=itl_unexplained(verdict),
        runners_up=runners_up(verdict),
        stock=stock,
    )


def commit() -> str:
    """What the tree was when the run was made, with a mark when the sources had changed since."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def keep(run: Run) -> None:
    """Add a run to the record of all runs."""
    with RECORDS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run)) + "\n")


def say(line: str) -> None:
    """Progress, as it happens."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

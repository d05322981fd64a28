"""Do requests survive every way in which a KV transfer of KV can fail, and does nothing stay behind?

    python benchmarks/kv_transfer_faults.py [--times 50] [--scenarios kv_rejected] [--quick] [--json]
    python benchmarks/kv_transfer_faults.py --real [--json] [--home DIR]

Two prefill and two decode engines, fakes, stand behind one gateway process that parts every request. While
clients ask without a pause, streamed and not, one thing breaks again and again: a prefill engine dies, KV
is rejected, a decode engine dies before its first token or after it, a transfer hangs, a prefill engine is
restarted under a ticket. Each token of a fake engine is a hash of all before it, and KV that is read too
late spoils it: every text is held against that of an engine to which nothing happens. After each scenario
the load ends, and then no request may be booked on a worker and no block of KV in use. The last line is one
JSON object: faults (how often something was broken), requests, lost (answered with an error), wrong_text,
failed_over (requests that met a fault), transferred, tries_max (both sides of a KV transfer are one try),
kv_blocks_left, booked_left, and the same per scenario.

With --real, two real engines under `phasewise up`, each thing broken once by SIGKILL or SIGSTOP; greedy
texts must be those of an undisturbed engine, or part from them where the engine's two best choices are
nearly alike. Either way it ends with 1 where anything was lost, wrong or left behind, or a request took more
than two tries; with fakes also where a scenario saw no KV transfer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from breaking.load import Load, expected_texts, records_after
from breaking.pairs import LEASE_S, Pairs, running_pairs, undisturbed_engine
from breaking.real_faults import break_real_engines
from breaking.scenarios import SCENARIOS
from ending import end_in_order_when_told

from phasewise.fake_engine.engine import FakeEngine

CLIENTS = 8
BETWEEN = 24
"""Requests that are answered between two faults: as many clear the name of a pair that failed."""
NONE_OF_THESE = ("lost", "ended_with_error", "wrong_text", "kv_blocks_left", "kv_usage_left", "booked_left")
TRIES_AT_MOST = 2


def main() -> None:
    """Break things, count, print the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=50, help="how often each thing is broken")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="some of them, comma-separated")
    parser.add_argument("--quick", action="store_true", help="break each thing twice")
    parser.add_argument("--real", action="store_true", help="two real engines instead, each thing once")
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    default_home = Path(__file__).resolve().parent.parent / ".phasewise"
    parser.add_argument("--home", type=Path, default=default_home, help="where engine and model are")
    options = parser.parse_args()
    end_in_order_when_told()
    if options.real:
        os.environ.setdefault("PHASEWISE_HOME", str(options.home))
        record = asyncio.run(break_real_engines())
    else:
        times = 2 if options.quick else options.times
        # Not asyncio's own loop: it loses connections that an engine took in the moment of its death.
        record = uvloop.run(run_scenarios(options.scenarios.split(","), times))
    if not options.json:
        print(json.dumps(record, indent=2))
    print(json.dumps(record))
    if wrong := what_is_wrong(record):
        sys.exit(f"not as promised: {', '.join(wrong)}")


def what_is_wrong(record: Mapping[str, Any]) -> list[str]:
    """The counts that are not what they have to be; the record is of fakes or of real engines."""
    wrong = [f"{key} is {record[key]}" for key in NONE_OF_THESE if record.get(key)]
    if record["tries_max"] > TRIES_AT_MOST:
        wrong.append(f"tries_max is {record['tries_max']}")
    idle = [name for name, it in record.get("scenarios", {}).items() if not it["transferred"]]
    return [*wrong, *(f"nothing was handed over in {name}" for name in idle)]


async def run_scenarios(names: Sequence[str], times: int) -> dict[str, Any]:
    """All scenarios, one after the other, before the same gateway."""
    async with undisturbed_engine() as url:
        expected = await expected_texts(url)
    results: dict[str, dict[str, Any]] = {}
    after = 0
    async with running_pairs() as pairs:
        for name in names:
            results[name], after = await run_scenario(name, pairs, expected, times, after)
            print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    sums = ("faults", "requests", "lost", "wrong_text", "failed_over", "transferred")
    return {
        **{key: sum(it[key] for it in results.values()) for key in sums},
        **{
            key: max(it[key] for it in results.values())
            for key in ("tries_max", "kv_blocks_left", "booked_left")
        },
        "scenarios": results,
    }


async def run_scenario(
    name: str, pairs: Pairs, expected: Sequence[str], times: int, after: int
) -> tuple[dict[str, Any], int]:
    """One thing breaks so many times under load; what is left when the load has ended."""
    load = Load(pairs.url, expected, CLIENTS)
    try:
        for _ in range(times):
            await load.served(BETWEEN)
            await SCENARIOS[name](pairs)
            await pairs.fixed()
        await load.served(BETWEEN)
    finally:
        tally = await load.stop()
    left = await what_is_left(pairs)
    records, after = await records_after(pairs.client, after)
    result = {
        "faults": times,
        "requests": tally.requests,
        "lost": tally.ended.total(),
        "wrong_text": tally.wrong_text,
        "failed_over": records.failed_over,
        "transferred": records.transferred,
        "tries_max": records.tries_max,
        **left,
        "errors": dict(tally.ended),
    }
    return result, after


async def what_is_left(pairs: Pairs) -> dict[str, int]:
    """Blocks in use and requests booked, once KV that nobody fetched had its time to be given up."""
    blocks = booked = 0
    for _ in range(3 * LEASE_S * 10):
        blocks = sum(blocks_in_use(engine) for engine in pairs.engines)
        booked = int(await pairs.booked())
        if not blocks and not booked:
            break
        await asyncio.sleep(0.1)
    return {"kv_blocks_left": blocks, "booked_left": booked}


def blocks_in_use(engine: FakeEngine) -> int:
    """KV blocks that some request of the engine holds or keeps for another engine."""
    engine.engine.check_invariants()
    return round(engine.engine.kv_usage * engine.config.shape.total_blocks)


if __name__ == "__main__":
    main()

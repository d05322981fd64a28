"""Is a request parted when that pays, and only then? Ours against `always` and `never`, whichever is better.

    python benchmarks/split_decision.py [--seconds 240] [--seeds 3] [--virtual] [--quick] [--json]
    python benchmarks/split_decision.py --real [--seconds 150] [--home DIR] [--json]

Short chat turns (20 to 250 tokens, 40 to 160 written) and long documents (2,000 to 5,000 tokens, 30 to 90
written) come at random times, with 5%, 20% or 50% long ones, at loads that take 30%, 60% or 90% of the
engines' time, on one prefill and one or two decode engines; and short ones alone at 120%: 20 cells. The
engines are fakes that take the time of the real one on a CPU (preset cpu-demo). A request is good when its
first token came within 2 s + 2 s per 1,000 prompt tokens and its tokens 0.1 s apart on average: about twice
what it takes with an engine to itself. Goodput is the share of good requests, over all that came after a
first part of the run, which is for learning. Regret is what ours lacks to the better of `always` and `never`
in the same cell, as a share of it; where it is negative, ours is better than both. `threshold` (512 tokens)
is told beside them: to set it right one has to know one's traffic.

`never` is the honest one: all engines take whole requests, by the fewest outstanding tokens.

First in virtual time, where the gateway's own flow and policies run over virtual engines, with several seeds;
then live over HTTP, a gateway process for each rule, all rules at the same time with the same load. With
--real one cell on two real engines, one rule after the other and back. The last line is one JSON object:
cells, regret_median and regret_worst (live, or virtual with --virtual), the virtual_ ones beside them, and
each cell's goodput by rule.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ending import end_in_order_when_told
from handing_over.fleets import Layout, real_engines
from splitting.live import MODEL, Answered, fake_arms, gateway, play
from splitting.loads import CELLS, Cell, asks, met
from splitting.virtual_fleet import VirtualFleet
from stress.processes import wait_until_ready

from phasewise.fake_engine.costs import PRESETS
from phasewise.model.hand_over import SplitRule

COST = PRESETS["cpu-demo"]
RULES = (SplitRule.AUTO, SplitRule.ALWAYS, SplitRule.NEVER, SplitRule.THRESHOLD)
LEARNING_SHARE = 0.15
"""Of a run, at its beginning: not counted, for any rule."""
CELLS_AT_ONCE = 3
"""Fakes mostly sleep; with more, their gateways would wait for each other."""
VIRTUAL_SECONDS = 400.0
"""Costs seconds only, and a cell with few long prompts needs it."""
QUICK_CELLS = (Cell(1, 1, 0.2, 0.6), Cell(1, 2, 0.05, 0.6))
REAL_CELL = Cell(1, 1, 0.2, 0.5)

Goodput = dict[SplitRule, float]


def main() -> None:
    """Run the cells, print a table or one JSON object."""
    options = _options()
    end_in_order_when_told()
    if options.real:
        os.environ.setdefault("PHASEWISE_HOME", str(options.home))
        record = asyncio.run(_real(options.seconds or 150.0))
    else:
        record = _fakes(options)
    if not options.json:
        _print_table(record)
    print(json.dumps(record))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help="of traffic in a cell; 240, or 150 with --real")
    parser.add_argument("--seeds", type=int, default=3, help="virtual runs of each cell")
    parser.add_argument("--quick", action="store_true", help="two cells, shortly")
    parser.add_argument("--virtual", action="store_true", help="leave out the live runs")
    parser.add_argument("--real", action="store_true", help="one cell on two real engines")
    parser.add_argument("--json", action="store_true", help="print only progress and the JSON line")
    default_home = Path(__file__).resolve().parent.parent / ".phasewise"
    parser.add_argument("--home", type=Path, default=default_home, help="where engine and model are")
    return parser.parse_args()


def _fakes(options: argparse.Namespace) -> dict[str, Any]:
    cells: Sequence[Cell] = QUICK_CELLS if options.quick else CELLS
    seconds = options.seconds or (20.0 if options.quick else 240.0)
    seeds = 1 if options.quick else options.seeds
    virtual = {}
    for cell in cells:
        virtual[cell] = _virtual(cell, max(seconds, VIRTUAL_SECONDS), seeds)
        _tell("virtual", cell, virtual[cell])
    live = {} if options.virtual else asyncio.run(_live(cells, seconds))
    return {
        **_figures(live or virtual),
        "live": bool(live),
        "virtual_regret_median": _figures(virtual)["regret_median"],
        "virtual_regret_worst": _figures(virtual)["regret_worst"],
        "goodput": {cell.name: goodput for cell, goodput in live.items()},
        "virtual_goodput": {cell.name: goodput for cell, goodput in virtual.items()},
    }


# --- running ----------------------------------------------------------------------------------------------


def _virtual(cell: Cell, seconds: float, seeds: int) -> Goodput:
    shares: dict[SplitRule, list[float]] = {rule: [] for rule in RULES}
    for seed in range(1, seeds + 1):
        load = asks(cell, COST, seconds, seed)
        for rule in RULES:
            served = VirtualFleet(rule, cell.prefill, cell.decode, COST).serve(load)
            good = [
                met(it.ask, it.ttft_s, it.tpot_s) for it in served if it.ask.at_s >= LEARNING_SHARE * seconds
            ]
            shares[rule].append(fmean(good))
    return {rule: round(fmean(each), 4) for rule, each in shares.items()}


async def _live(cells: Sequence[Cell], seconds: float) -> dict[Cell, Goodput]:
    some = asyncio.Semaphore(CELLS_AT_ONCE)

    async def run(cell: Cell) -> Goodput:
        async with some, fake_arms(RULES, cell, COST) as urls:
            load = asks(cell, COST, seconds, seed=1)
            answers = await asyncio.gather(*(play(urls[rule], MODEL, load) for rule in RULES))
            goodput = {rule: _share(each, seconds) for rule, each in zip(RULES, answers, strict=True)}
            _tell("live", cell, goodput)
            return goodput

    return dict(zip(cells, await asyncio.gather(*map(run, cells)), strict=True))


async def _real(seconds: float) -> dict[str, Any]:
    """Each rule twice, in an order that a drift of the machine does not favour."""
    rules = (SplitRule.AUTO, SplitRule.ALWAYS, SplitRule.NEVER)
    shares: dict[SplitRule, list[float]] = {rule: [] for rule in rules}
    with real_engines(Layout.PARTED) as engines:
        for turn, rule in enumerate((*rules, *reversed(rules))):
            load = asks(REAL_CELL, COST, seconds, seed=1 + turn // len(rules))
            with gateway(engines.workers, rule) as (url, process, log):
                await asyncio.to_thread(wait_until_ready, url, process, log)
                answers = await play(url, engines.model, load)
            shares[rule].append(_share(answers, seconds))
            print(f"real {rule}: {shares[rule][-1]:.3f} of {len(load)}", file=sys.stderr, flush=True)
    goodput = {rule: round(fmean(each), 4) for rule, each in shares.items()}
    return {**_figures({REAL_CELL: goodput}), "real": True, "goodput": {REAL_CELL.name: goodput}}


def _share(answers: Sequence[Answered], seconds: float) -> float:
    return round(fmean(it.good for it in answers if it.ask.at_s >= LEARNING_SHARE * seconds), 4)


# --- telling ----------------------------------------------------------------------------------------------


def _regret(goodput: Goodput) -> float:
    better = max(goodput[SplitRule.ALWAYS], goodput[SplitRule.NEVER])
    return 1.0 - goodput[SplitRule.AUTO] / better if better else 0.0


def _figures(goodputs: dict[Cell, Goodput]) -> dict[str, Any]:
    regrets = [_regret(goodput) for goodput in goodputs.values()]
    return {
        "cells": len(regrets),
        "regret_median": round(median(regrets), 4),
        "regret_worst": round(max(regrets), 4),
    }


def _tell(how: str, cell: Cell, goodput: Goodput) -> None:
    shares = " ".join(f"{rule} {share:.3f}" for rule, share in goodput.items())
    print(f"{how} {cell.name}: {shares} regret {_regret(goodput):+.1%}", file=sys.stderr, flush=True)


def _print_table(record: dict[str, Any]) -> None:
    for name, goodput in (record.get("goodput") or record["virtual_goodput"]).items():
        print(f"{name:26}", *(f"{rule} {share:6.1%}" for rule, share in goodput.items()))
    print(f"regret over {record['cells']} cells: median {record['regret_median']:.1%}, "
          f"worst {record['regret_worst']:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()

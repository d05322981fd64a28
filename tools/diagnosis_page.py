"""Writes docs/diagnosis-measured.md from the record of judged runs: `python tools/diagnosis_page.py`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from textwrap import fill
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "records" / "diagnosis_runs.jsonl"
HELD_OUT_RECORD = ROOT / "benchmarks" / "records" / "truth_runs.jsonl"
REAL_RECORD = ROOT / "benchmarks" / "records" / "real_runs.jsonl"
PAGE = ROOT / "docs" / "diagnosis-measured.md"

Row = dict[str, Any]

INTRODUCTION = """\
# How often the verdict is right

**On 30 scenes planted by people who had only the docs, on the real engine under live traffic, {right} of 30
verdicts were what they had stated beforehand. On the 29 scenes before those, 11 were.**

## Scenes planted by others

vLLM 0.32.0 on the CPU with the demo model, TTFT 1.5 s, TPOT 200 ms. Two strangers wrote traffic clients,
scenes and the verdicts that they would accept (`benchmarks/strangers`). Rules were frozen, then asked once
([the record](../benchmarks/records/real_runs.jsonl)).

| asked | scenes | right |
|---|---|---|
| through the gateway, with the step record | {gateway_scenes} | {gateway_right} |
| a stock vLLM, without recorder or gateway | {stock_scenes} | {stock_right} |

At confidence *high* {wrong_at_high} of {high} were wrong. The machine was slower than they had assumed: in 2
scenes the fault made hardly any request late, and in 4 planned as healthy requests were late.

So every slow scene was played again without each suspect. **By what that took away, {removed_right} of
{removed} verdicts were right** (on a stock vLLM {removed_stock_right} of {removed_stock}; at *high*
{removed_high_right} of {removed_high}). The other {unscored} cannot be scored: too few requests were late, or
no removal helped enough.

The 29 before have changed the rules since: kept as files, **all are judged right**
(`python benchmarks/known_scenes.py --json`). This says nothing about yours.

{held_out}
## Scenes planted by the authors of the rules

Printed by `python tools/diagnosis_page.py` from [the record of
runs](../benchmarks/records/diagnosis_runs.jsonl) that `python benchmarks/diagnosis_suite.py --json` keeps:
the same engine, the rules of that time (objective: TTFT 1 s, TPOT 120 ms).
"""
HELD_OUT = """\
## Virtual scenes whose truth is found by removal

Random fleets, traffic, settings and faults in virtual time, on machines that the product's fit cannot
describe. A cause is true if its removal takes 0.4 of the loss away. Cost families, arrivals and pairs differ
from those that rules were tuned on; the seed is the hash of the commit that froze the rules
(`python benchmarks/diagnosis_truth.py --set held-out --json`). Rules have changed since.

**{virtual_right} of {virtual_scenes} verdicts were right ({right})**: {gateway} through the gateway,
{recorder} with a step record, {stock} from counters alone. False alarms: {false_alarms} in {healthy}
healthy scenes.

| confidence | verdicts | right |
|---|---|---|
| high | {virtual_high} | {virtual_high_right} |
| medium | {medium} | {medium_right} |
| low, or no cause named | {rest} | {rest_right} |

{two} named two causes. Of {unknown} scenes with a fault that no rule knows, {unknown_right} were answered
with the phase and "no known cause".
"""
READING = "Rules were tuned on other seeds ({tune} of those runs were right, on a busy machine)."


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    rows = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    judged = [row for row in rows if row["run_set"] == "judge"]
    real, fake = ([row for row in judged if row["kind"] == kind] for kind in ("real", "fake"))
    tune = [row for row in rows if row["run_set"] == "tune" and row["kind"] == "real"]
    sections = [
        INTRODUCTION.format(held_out=held_out(), **by_strangers()),
        headline(real),
        table(real),
        residuals(real),
        virtual(fake),
        READING.format(tune=share(tune)),
    ]
    return "\n".join(filter(None, sections))


def by_strangers() -> dict[str, int]:
    """The last judged run on scenes of strangers, counted."""
    run = json.loads(REAL_RECORD.read_text(encoding="utf-8").splitlines()[-1])
    rows = run["rows"]
    high = [row for row in rows if row["confidence"] == "high"]
    found = {
        "right": sum(row["expert_right"] for row in rows),
        "high": len(high),
        "wrong_at_high": sum(not row["expert_right"] for row in high),
        "removed": run["real_scenes"],
        "removed_right": run["real_right"],
        "removed_stock": run["stock_scenes"],
        "removed_stock_right": run["stock_right"],
        "removed_high": run["real_high"],
        "removed_high_right": run["real_high_right"],
        "unscored": len(rows) - run["real_scenes"],
    }
    for level in ("gateway", "stock"):
        own = [row for row in rows if row["level"] == level]
        found |= {f"{level}_scenes": len(own), f"{level}_right": sum(row["expert_right"] for row in own)}
    return found


def held_out() -> str:
    """The last judged run on virtual scenes; nothing if there is none."""
    if not HELD_OUT_RECORD.exists():
        return ""
    run = json.loads(HELD_OUT_RECORD.read_text(encoding="utf-8").splitlines()[-1])
    slow, levels = run["virtual_slow"], run["by_level"]
    return HELD_OUT.format(
        **run,
        right=f"{run['virtual_right'] / run['virtual_scenes']:.1%}",
        gateway=levels["gateway"],
        recorder=levels["recorder"],
        stock=levels["stock"],
        rest=slow - run["virtual_high"] - run["medium"],
        rest_right=run["virtual_slow_right"] - run["virtual_high_right"] - run["medium_right"],
        two=f"{run['names_two_share']:.1%}",
        unknown_right=f"{run['unknown_right_share']:.0%}",
    )


def share(rows: list[Row]) -> str:
    """How many were right."""
    return f"{sum(row['right'] for row in rows)} of {len(rows)}"


def headline(real: list[Row]) -> str:
    """The main figure."""
    healthy = [row for row in real if "healthy" in row["expected"]]
    alarms = sum(not row["right"] for row in healthy)
    return (
        f"**{share(real)} judged runs on the real engine were right**; "
        f"{alarms} false alarms in {len(healthy)} healthy ones.\n"
    )


def table(real: list[Row]) -> str:
    """What was planted, and what was said of it if that was wrong."""
    wrong = Counter(
        f"{row['case'].replace('_', ' ')} was called {row['said']}" for row in real if not row["right"]
    )
    missed = ", ".join(f"{words}{f' {times} times' if times > 1 else ''}" for words, times in wrong.items())
    return fill(f"Wrong: {missed or 'none'}.", 110) + "\n"


def residuals(real: list[Row]) -> str:
    """What no clock explains where nothing was planted."""
    reported = [row for row in real if "healthy" in row["expected"] and row.get("ttft") and row.get("itl")]
    worst = {
        (phase, figure): max(row[phase][figure] for row in reported)
        for phase in ("ttft", "itl")
        for figure in ("share", "ms")
    }
    return (
        "In healthy runs with a recorder, unexplained time was at worst "
        f"{worst['ttft', 'share']:.1%} of TTFT ({worst['ttft', 'ms']:.1f} ms)\n"
        f"and {worst['itl', 'share']:.2%} of the time per token ({worst['itl', 'ms']:.2f} ms), "
        "at the median request of each run.\n"
    )


def virtual(fake: list[Row]) -> str:
    """The same causes on virtual engines."""
    if not fake:
        return ""
    wrong = Counter(f"{row['case']} called {row['said']}" for row in fake if not row["right"])
    missed = f" Wrong: {', '.join(f'{words} x{times}' for words, times in wrong.items())}." if wrong else ""
    return f"On virtual engines of three sizes, {share(fake)} judged runs were right.{missed}\n"


if __name__ == "__main__":
    main()

"""Writes docs/diagnosis-measured.md from the record of judged runs: `python tools/diagnosis_page.py`."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REAL_RECORD = ROOT / "benchmarks" / "records" / "real_runs.jsonl"
PAGE = ROOT / "docs" / "diagnosis-measured.md"

PAGE_TEXT = """\
# How often the verdict is right

**On 30 scenes planted with only the docs at hand, on the real engine under live traffic, {right} of 30
verdicts were those stated beforehand. On the 29 scenes before those, 11 were.**

## The 30 scenes

vLLM 0.32.0 on the CPU with the demo model, TTFT 1.5 s, TPOT 200 ms. Traffic clients, scenes and the verdicts
to accept were written with only the docs at hand (`benchmarks/records/real_scenes`). Rules were frozen, then
asked once ([the record](../benchmarks/records/real_runs.jsonl)).

| asked | scenes | right |
|---|---|---|
| through the gateway, with the step record | {gateway_scenes} | {gateway_right} |
| a stock vLLM, without recorder or gateway | {stock_scenes} | {stock_right} |

At confidence *high* {wrong_at_high} of {high} were wrong. The machine was slower than assumed: in 2 scenes
the fault made hardly any request late, and in 4 planned as healthy requests were late.

So every slow scene was played again without each suspect. **By what that took away, {removed_right} of
{removed} verdicts were right** (on a stock vLLM {removed_stock_right} of {removed_stock}; at *high*
{removed_high_right} of {removed_high}). The other {unscored} cannot be scored: too few requests were late, or
no removal helped enough.

The 29 before have changed the rules since: kept as files, **all are judged right**
(`python benchmarks/known_scenes.py --json`). This says nothing about yours.

"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    return PAGE_TEXT.format(**last_run())


def last_run() -> dict[str, int]:
    """The last judged run on scenes planted from the docs, counted."""
    run = json.loads(REAL_RECORD.read_text(encoding="utf-8").splitlines()[-1])
    rows = run["rows"]
    high = [row for row in rows if row["confidence"] == "high"]
    found = {
        "right": sum(row["stated_right"] for row in rows),
        "high": len(high),
        "wrong_at_high": sum(not row["stated_right"] for row in high),
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
        found |= {f"{level}_scenes": len(own), f"{level}_right": sum(row["stated_right"] for row in own)}
    return found


if __name__ == "__main__":
    main()

"""Writes docs/validated.md from the reports in docs/validated/: `python tools/validated_page.py`."""

from __future__ import annotations

from pathlib import Path

from phasewise.experiments.validation_claims import read_judged
from phasewise.report.engine_view import markdown_row

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "validated.md"
REPORTS = DOCS / "validated"

INTRODUCTION = """\
# Where the published claims were tried

`phasewise engine validate` tries [ten published claims](how-to/validate-on-your-hardware.md#claims) on a
machine and writes a report. Each row is one report.

| report | device | model and versions | holds | does not hold | inconclusive | not tried | not holding |
|---|---|---|---|---|---|---|---|
"""
CLOSING = """
*Inconclusive*: it was measured, and the noise was too large to say. *Not tried*: a step failed, or had no
time; the report says why.

## Add yours

1. `phasewise engine validate --output NAME` ([how](how-to/validate-on-your-hardware.md)). Reports in which
   claims do not hold are as welcome as others.
2. Read `NAME.json`: it holds the device, versions, settings and figures. It holds no prompts, addresses,
   paths, or names of hosts and users.
3. Copy it to `docs/validated/`, named after the device and the day: `l4-2026-11-17.json`.
4. `phasewise engine validate docs/validated/*.json` checks every report; `python tools/validated_page.py`
   writes this page. Open a pull request with both files.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page(folder: Path = REPORTS) -> str:
    """The whole page, the newest report first."""
    read = [(read_judged(file.read_bytes(), file.name), file.name) for file in sorted(folder.glob("*.json"))]
    read.sort(key=lambda it: it[0].day, reverse=True)
    rows = "".join(f"{markdown_row(report, f'validated/{name}')}\n" for report, name in read)
    return INTRODUCTION + rows + CLOSING


if __name__ == "__main__":
    main()

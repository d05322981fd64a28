"""When a table's rows were measured, in words. What the rows say is findings.py's business."""

from __future__ import annotations

from datetime import UTC, datetime

from phasewise.levers.results import Results


def days_in_words(results: Results) -> str:
    """When the rows were measured: a day, or the first and the last."""
    between = results.measured_between()
    if between is None:
        return "no day yet"
    first, last = (datetime.fromtimestamp(at_unix_s, UTC).date().isoformat() for at_unix_s in between)
    return first if first == last else f"{first} to {last}"

"""Hands a verdict over: to the screen or to a program, as a page, and its traffic as a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import typer

from phasewise.bench.report_page import check_available
from phasewise.cli.console import err, out
from phasewise.cli.diagnose_view import show
from phasewise.cli.output_files import refuse_unwritable
from phasewise.diagnosis.verdict import Verdict
from phasewise.diagnosis.verdict_record import verdict_record
from phasewise.observe.evidence import Evidence
from phasewise.observe.page.report import report_page
from phasewise.verify.window_trace import trace_of
from phasewise.workload.traces import mooncake_lines


@dataclass(frozen=True, slots=True)
class HandOver:
    """What was asked for beside the verdict itself."""

    report: Path | None
    save_traffic: Path | None
    as_json: bool

    def check(self) -> None:
        """Find out before the window, not after it, whether files can be written."""
        if self.report is not None:
            check_available()
        refuse_unwritable("--report", self.report)
        refuse_unwritable("--save-traffic", self.save_traffic)

    def hand_over(self, verdict: Verdict, evidence: Evidence, subject: str) -> None:
        """Print the verdict and write the files."""
        if self.as_json:
            self.print_json(verdict, {})
        else:
            show(out, verdict, subject)
        self.write_files(verdict, evidence, subject)

    def print_json(self, verdict: Verdict, more: dict[str, Any]) -> None:
        """One JSON object with everything."""
        typer.echo(orjson.dumps(verdict_record(verdict) | more).decode())

    def write_files(self, verdict: Verdict, evidence: Evidence, subject: str) -> None:
        """The page and the trace."""
        if self.report is not None:
            self.report.write_text(report_page(verdict, evidence, subject), encoding="utf-8")
            _say(f"wrote {self.report}")
        if self.save_traffic is not None:
            _save_traffic(self.save_traffic, evidence)


def _save_traffic(path: Path, evidence: Evidence) -> None:
    found = trace_of(evidence.timelines)
    if not found.trace.requests:
        _say(f"no traffic was saved to {path}: single requests and their lengths were not seen")
        return
    path.write_bytes(b"".join(mooncake_lines(found.trace)))
    notes = [f"{len(found.trace.requests)} requests"]
    if found.estimated:
        notes.append(f"{found.estimated} of them with a length that is a guess, as they were cut off")
    if found.left_out:
        notes.append(f"{found.left_out} left out, as their size is not known")
    _say(f"wrote {path}: {'; '.join(notes)}")


def _say(words: str) -> None:
    err.print(words, style="dim", soft_wrap=True, markup=False)

"""The outputs of a verdict: JSON, an HTML page, and its traffic as a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from phasewise.benchmark.workload.traces import mooncake_lines
from phasewise.benchmark.workload.window_trace import trace_of
from phasewise.cli.options import reject_unwritable, say
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.verdict import Verdict, verdict_record
from phasewise.report.diagnosis.page import report_page

HtmlPage = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write an HTML page with charts to this file; it opens offline."
    ),
]
SaveTraffic = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Write the arrival times, lengths and shared prefixes of the requests to this file, without any "
        "text: a trace that `bench` and `compare` replay with --trace.",
    ),
]
SaveEvidence = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write all that the verdict is made of to this file: counters, steps, times of requests, the "
        "host's load, no text. `phasewise diagnose FILE` judges it again without the server.",
    ),
]


@dataclass(frozen=True, slots=True)
class VerdictOutputs:
    """The outputs that the user asked for."""

    html: Path | None
    save_traffic: Path | None
    as_json: bool

    def check(self) -> None:
        """Raise now if a file cannot be written, before the window begins."""
        reject_unwritable("--html", self.html)
        reject_unwritable("--save-traffic", self.save_traffic)

    def print_json(self, verdict: Verdict, more: dict[str, Any]) -> None:
        """One JSON object with everything."""
        typer.echo(orjson.dumps(verdict_record(verdict) | more).decode())

    def write_files(self, verdict: Verdict, evidence: Evidence, subject: str) -> None:
        """The page and the trace."""
        if self.html is not None:
            self.html.write_text(report_page(verdict, evidence, subject), encoding="utf-8")
            say(f"wrote {self.html}")
        if self.save_traffic is not None:
            _save_traffic(self.save_traffic, evidence)


def _save_traffic(path: Path, evidence: Evidence) -> None:
    found = trace_of(evidence.timelines)
    if not found.trace.requests:
        say(f"no traffic was saved to {path}: single requests and their lengths were not observed")
        return
    path.write_bytes(b"".join(mooncake_lines(found.trace)))
    notes = [f"{len(found.trace.requests)} requests"]
    if found.estimated:
        notes.append(f"{found.estimated} of them with an estimated length, because they were cut off")
    if found.left_out:
        notes.append(f"{found.left_out} left out, because their length is unknown")
    say(f"wrote {path}: {'; '.join(notes)}")

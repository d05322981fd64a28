"""`phasewise diagnose TARGET`: whether it is slow to start or slow to stream, why, and what to do."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from phasewise import __version__
from phasewise.api.diagnose import gather_order, judge, not_for_a_file, observe
from phasewise.api.targets import gateway_address, is_evidence_file
from phasewise.benchmark.workload.traces import mooncake_lines
from phasewise.benchmark.workload.window_trace import trace_of
from phasewise.cli.options import (
    AdminKey,
    AsJson,
    Costs,
    HtmlPage,
    StepsUrl,
    print_json,
    reject_unwritable,
    result_option,
    say,
)
from phasewise.diagnosis.diagnose import Known
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.diagnosis.observed.bundle import bundle_of
from phasewise.diagnosis.verdict import Verdict
from phasewise.fleet.config import phasewise_home
from phasewise.report import console
from phasewise.report.console import live_line
from phasewise.report.diagnosis.page import report_page
from phasewise.report.diagnosis.screen import show


def diagnose(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="http://host:port of a phasewise gateway or an engine, the file of a running fleet, "
            "or a file that --save-evidence wrote. (default: the gateway that runs here)",
            show_default=False,
        ),
    ] = None,
    *,
    send_probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Send a short synthetic load: 10 requests, at most 5 at once. The verdict says SYNTHETIC.",
        ),
    ] = False,
    window: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=3600.0,
            help="Without --probe: how long to watch live traffic, such as 30s or 2m. (default: 20, and up "
            "to 60 while few requests have ended)",
        ),
    ] = None,
    slo: Annotated[
        str,
        typer.Option(help="What counts as slow, such as ttft=500ms,tpot=50ms. (default: ttft=1s,tpot=100ms)"),
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(help="The model for --probe. (default: the first one served)"),
    ] = None,
    steps_url: StepsUrl = None,
    costs: Costs = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PHASEWISE_API_KEY", help="API key for the requests of --probe.")
    ] = None,
    admin_key: AdminKey = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Repeat the lengths and arrivals of another --probe. The first words of every prompt are "
            "new in each run, so that no prefix cache holds them.",
        ),
    ] = None,
    html: HtmlPage = None,
    save_traffic: Annotated[
        Path | None,
        result_option(
            metavar="FILE.jsonl",
            help="Write the arrival times, lengths and shared prefixes of the requests to this file, without "
            "any text: a trace that `bench` and `compare` replay with --trace.",
        ),
    ] = None,
    save_evidence: Annotated[
        Path | None,
        result_option(
            help="Write all that the verdict is made of to this file: counters, steps, times of requests, "
            "the host's load, no text. `phasewise diagnose FILE` judges it again without the server.",
        ),
    ] = None,
    as_json: AsJson = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with code 0 whatever the verdict is.")
    ] = False,
) -> None:
    """Find out whether a model is slow to start or slow to stream, why, and what to do about it.

    Watches live traffic, or sends a short load with --probe. Works on a stock vLLM from its /metrics, better
    with phasewise's step recorder in the engine, best through a phasewise gateway.
    `phasewise compare FLEET --fix` tries the fix that it suggests. `phasewise diagnose FILE` judges evidence
    that --save-evidence kept. Ctrl-C ends the window early; the verdict covers what was observed.

    Exit codes: 0 healthy, 3 slow or failing, 4 not enough traffic to judge, 5 the machine that sends the
    probe is too busy to judge, 1 an error, 2 wrong usage.
    """
    order = gather_order(window, model, api_key, seed, probing=send_probe)
    reject_unwritable("--html", html)
    reject_unwritable("--save-traffic", save_traffic)
    reject_unwritable("--save-evidence", save_evidence)
    known = Known(None if costs is None else load_fit(costs))
    target = target or gateway_address(None, phasewise_home(os.environ), "TARGET")
    if save_evidence is not None and is_evidence_file(target):
        raise not_for_a_file("--save-evidence")
    observed, objective = observe(target, slo, order, admin_key, steps_url, _Progress())
    if save_evidence is not None:
        # Before it is judged: if that fails, the file shows why.
        save_evidence.write_bytes(bundle_of(observed, objective, f"phasewise {__version__}"))
        say(f"wrote {save_evidence}")
    diagnosis = judge(observed, objective, known, numbered=is_evidence_file(target))
    code = 0 if exit_zero else diagnosis.exit_code
    if as_json:
        print_json(diagnosis.to_dict() | {"exit_code": code})
    else:
        show(console.out, diagnosis.details, diagnosis.target)
    write_page(html, diagnosis.details, diagnosis.evidence, diagnosis.target)
    if save_traffic is not None:
        _save_traffic(save_traffic, diagnosis.evidence)
    raise typer.Exit(code)


class _Progress:
    """Progress on stderr while evidence is gathered."""

    def say(self, words: str) -> None:
        say(words)

    def watching(self, window_s: float) -> AbstractAsyncContextManager[None]:
        began_s = time.monotonic()
        return live_line(
            "watching", lambda: f"{time.monotonic() - began_s:.0f} of {window_s:g} s", sys.stderr
        )


def write_page(file: Path | None, verdict: Verdict, evidence: Evidence, subject: str) -> None:
    """Write the HTML page of a verdict, if one was asked for."""
    if file is not None:
        file.write_text(report_page(verdict, evidence, subject), encoding="utf-8")
        say(f"wrote {file}")


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

"""`phasewise diagnose TARGET`: whether it is slow to start or slow to stream, why, and what to do."""

from __future__ import annotations

import os
import sys
import time
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import typer

from phasewise import __version__
from phasewise.api.diagnose import gather_order, judge, not_for_a_file, observe
from phasewise.api.targets import gateway_address, is_evidence_file
from phasewise.cli.diagnose_outputs import HtmlPage, SaveEvidence, SaveTraffic, VerdictOutputs
from phasewise.cli.options import AdminKey, AsJson, Costs, StepsUrl, reject_unwritable, say
from phasewise.diagnosis.diagnose import Known
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.diagnosis.observed.bundle import bundle_of
from phasewise.fleet.config import phasewise_home
from phasewise.report import console
from phasewise.report.diagnosis.screen import show
from phasewise.report.live_view import live_line


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
    save_traffic: SaveTraffic = None,
    save_evidence: SaveEvidence = None,
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
    outputs = VerdictOutputs(html, save_traffic, as_json)
    outputs.check()
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
        outputs.print_json(diagnosis.details, {"exit_code": code})
    else:
        show(console.out, diagnosis.details, diagnosis.target)
    outputs.write_files(diagnosis.details, diagnosis.evidence, diagnosis.target)
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

"""`phasewise diagnose URL`: slow to start or slow to stream, why, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import orjson
import typer

from phasewise.adapters.address import origin
from phasewise.cli import console
from phasewise.cli.admin_key import find_admin_key
from phasewise.cli.diagnose_view import show
from phasewise.config import phasewise_home
from phasewise.diagnosis.verdict import Verdict, judge
from phasewise.diagnosis.verdict_record import verdict_record
from phasewise.model.slo import parse_slo
from phasewise.observe.evidence import Evidence, picture_of
from phasewise.observe.probe import PROBE_REQUESTS, probe
from phasewise.observe.target import TargetKind, WatchTarget, identify
from phasewise.observe.watch import Watch


def diagnose(
    url: Annotated[str, typer.Argument(help="A phasewise gateway or a vLLM engine, http://host:port.")],
    send_probe: Annotated[
        bool,
        typer.Option("--probe", help="Send a short, polite load of our own: 10 requests, at most 5 at once."),
    ] = False,
    window: Annotated[
        float,
        typer.Option(min=1.0, max=3600.0, help="Without --probe: how many seconds to watch live traffic."),
    ] = 20.0,
    slo: Annotated[
        str,
        typer.Option(help="What counts as slow, such as ttft=500ms,tpot=50ms. Default: ttft=1s,tpot=100ms."),
    ] = "",
    model: Annotated[
        str | None, typer.Option(help="The model to probe; default: the first one served.")
    ] = None,
    steps_url: Annotated[
        str | None, typer.Option(help="Where the engine's step recorder listens; default: its port + 10000.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PHASEWISE_API_KEY", help="Key for the probe's requests.")
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="PHASEWISE_ADMIN_KEY", help="A gateway's admin key; one started here is found."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the probe's prompts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")] = False,
) -> None:
    """Say whether a model is slow to start or slow to stream, and why.

    Watches live traffic for a while, or sends a little of its own with --probe. Works on a stock vLLM from
    its /metrics, better with phasewise's step recorder in the engine, best through a phasewise gateway.
    """
    objective, url = parse_slo(slo), origin(url)
    admin_key = admin_key or find_admin_key(url, phasewise_home(os.environ))
    target = asyncio.run(identify(url, admin_key, steps_url))
    evidence = asyncio.run(_gather(target, admin_key, send_probe, window, model, api_key, seed))
    _present(judge(picture_of(evidence, objective), objective), target, as_json)


async def _gather(
    target: WatchTarget,
    admin_key: str | None,
    send_probe: bool,
    window_s: float,
    model: str | None,
    api_key: str | None,
    seed: int,
) -> Evidence:
    watch = Watch(target, admin_key)
    try:
        await watch.begin()
        if send_probe:
            console.err.print(f"probing {target.url} with {PROBE_REQUESTS} requests", style="dim")
            probed = await probe(target.url, model, api_key, seed, _say_scene)
            return await watch.end(probed)
        with console.err.status(f"watching {target.url} for {window_s:g} s (Ctrl-C ends it early)"):
            await _wait_or_interrupt(window_s)
        return await watch.end()
    finally:
        watch.close()


async def _wait_or_interrupt(window_s: float) -> None:
    try:
        await asyncio.sleep(window_s)
    except asyncio.CancelledError:
        # asyncio turns the first Ctrl-C into a cancellation; what was seen until then is worth a verdict.
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()


def _say_scene(title: str) -> None:
    console.err.print(f"  {title}", style="dim")


def _present(verdict: Verdict, target: WatchTarget, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(verdict_record(verdict)).decode())
        return
    engines = f"{len(target.engines)} engine{'s' if len(target.engines) != 1 else ''}"
    subject = (
        f"{target.url} ({f'gateway, {engines}' if target.kind is TargetKind.GATEWAY else 'vLLM engine'})"
    )
    show(console.out, verdict, subject)

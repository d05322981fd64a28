"""`phasewise top TARGET`: whether it is slow to start or slow to stream right now, once a second."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from phasewise.api.targets import gateway_address, subject_of
from phasewise.cli.explain import explained
from phasewise.cli.options import AdminKey, StepsUrl, print_json
from phasewise.core.errors import EngineUnreachable, PhasewiseError
from phasewise.core.slo import parse_slo
from phasewise.diagnosis.gather.live_feed import engine_snapshots, gateway_snapshots
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.live.snapshot import LiveSnapshot
from phasewise.diagnosis.observed.observation import TargetKind
from phasewise.fleet.config import phasewise_home
from phasewise.fleet.local.run_files import RunPaths, find_admin_key, fleet_names, is_supervised, read_state
from phasewise.report.console import out
from phasewise.report.live_screen import SORTS, LiveChoices, chosen_requests, render
from phasewise.report.request.text import render as render_request

WHOLE_AFTER = 3
"""Rates need two readings of an engine: the snapshot that --once shows."""
_UP, _DOWN, _ENTER, _ESCAPE, _BACK = "\x1b[A", "\x1b[B", "\n", "\x1b", "\x7f"


class LiveOrder(StrEnum):
    """What engines and requests are sorted by."""

    TTFT = "ttft"
    TPOT = "tpot"
    WAITING = "waiting"
    NAME = "name"


def top(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="http://host:port of a phasewise gateway or an engine, the file or the name of a running "
            "fleet. (default: the gateway that runs here)",
            show_default=False,
        ),
    ] = None,
    slo: Annotated[
        str,
        typer.Option(
            help="What counts as slow, such as ttft=500ms,tpot=50ms. (default: the gateway's own objectives, "
            "for an engine ttft=1s,tpot=100ms)"
        ),
    ] = "",
    sort: Annotated[LiveOrder, typer.Option(help="Sort engines and requests by this.")] = LiveOrder.TTFT,
    only: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only engines and requests with this text.")
    ] = "",
    steps_url: StepsUrl = None,
    once: Annotated[bool, typer.Option("--once", help="Print one view after 2 seconds, and exit.")] = False,
    admin_key: AdminKey = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object a second, with --once one; the last 30 s are in each."
        ),
    ] = False,
) -> None:
    """Show whether a model is slow to start or slow to stream right now, and in which part of the time.

    TTFT and TPOT of the last 30 seconds with their parts, engines with their queues and KV caches, tenants
    that queue, streams that stand still and what holds them. It is a state, not a verdict: `phasewise
    diagnose` finds the cause. It only reads. Keys: q quits, s sorts, / filters, f freezes, up and down choose
    a request, enter opens it.
    """
    parse_slo(slo)
    home = phasewise_home(os.environ)
    url = _fleet_named(target, home) or gateway_address(target, home, "TARGET")
    viewer = _Viewer(url, admin_key or find_admin_key(url, home), slo, steps_url)
    choices = LiveChoices(url, sort.value, only, diagnose=f"phasewise diagnose {url}")
    try:
        if as_json or once or not out.is_terminal or not sys.stdin.isatty():
            asyncio.run(_print(viewer, choices, once=once or not as_json, as_json=as_json))
        else:
            asyncio.run(_Screen(viewer, choices).run())
    except KeyboardInterrupt:
        return


def _fleet_named(target: str | None, home: Path) -> str | None:
    """The gateway of the running fleet of this name; None if there is none."""
    paths = RunPaths(home, target) if target in fleet_names(home) else None
    state = read_state(paths) if paths is not None and is_supervised(paths) else None
    return None if state is None else state.gateway.url


class _Viewer:
    """Where snapshots and requests come from."""

    def __init__(self, url: str, admin_key: str | None, slo: str, steps_url: str | None) -> None:
        self.url, self.admin_key, self._slo, self._steps_url = url, admin_key, slo, steps_url
        self.keeps_requests = False
        self.subject = url

    async def snapshots(self) -> AsyncIterator[LiveSnapshot]:
        """One a second, as long as the target answers."""
        target = await identify(self.url, self.admin_key, self._steps_url)
        self.subject = subject_of(target)
        self.keeps_requests = target.kind is TargetKind.GATEWAY
        if self.keeps_requests:
            async for snapshot in gateway_snapshots(self.url, self.admin_key, self._slo or None):
                yield snapshot
            raise EngineUnreachable(f"{self.url} has stopped", hint="`phasewise status` shows what runs here")
        async for snapshot in engine_snapshots(target.engines[0], parse_slo(self._slo)):
            yield snapshot


async def _print(viewer: _Viewer, choices: LiveChoices, *, once: bool, as_json: bool) -> None:
    number = 0
    async for snapshot in viewer.snapshots():
        number += 1
        if once and number < WHOLE_AFTER:
            continue
        if as_json:
            print_json(snapshot)
        else:
            out.print(render(snapshot, replace(choices, subject=viewer.subject, selected=-1), out.width))
        if once:
            return


class _Screen:
    """The terminal: a snapshot every second, and a redraw at every key."""

    def __init__(self, viewer: _Viewer, choices: LiveChoices) -> None:
        self._viewer = viewer
        self._choices = choices
        self._shown: LiveSnapshot | None = None
        self._opened: RenderableType | None = None
        self._keys: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> None:
        """Show it until the user leaves."""
        with Live(console=out, screen=True, auto_refresh=False) as live, _keys_into(self._keys):
            following = asyncio.create_task(self._follow(live))
            pressing = asyncio.create_task(self._press(live))
            done, left = await asyncio.wait({following, pressing}, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        for task in done:
            task.result()

    async def _follow(self, live: Live) -> None:
        self._draw(live)
        async for snapshot in self._viewer.snapshots():
            self._choices = replace(self._choices, subject=self._viewer.subject)
            if not self._choices.frozen:
                self._shown = snapshot
                self._draw(live)

    async def _press(self, live: Live) -> None:
        while (key := await self._keys.get()) != "q" or self._choices.typing:
            if self._opened is not None:
                self._opened = None
            elif key == _ENTER and not self._choices.typing:
                self._opened = await self._open()
            else:
                self._choices = after_key(self._choices, key, self._listed())
            self._draw(live)

    def _listed(self) -> int:
        return 0 if self._shown is None else len(chosen_requests(self._shown, self._choices))

    def _draw(self, live: Live) -> None:
        if self._opened is not None:
            live.update(self._opened, refresh=True)
        elif self._shown is None:
            live.update(Text(f"waiting for {self._viewer.url}"), refresh=True)
        else:
            width, height = out.size
            live.update(render(self._shown, self._choices, width, height), refresh=True)

    async def _open(self) -> RenderableType | None:
        requests = [] if self._shown is None else chosen_requests(self._shown, self._choices)
        if not requests:
            return None
        if not self._viewer.keeps_requests:
            return Text("An engine keeps no requests: only a gateway's can be opened. Any key goes back.")
        chosen = requests[min(self._choices.selected, len(requests) - 1)].request_id
        try:
            life, missing = await explained(chosen, self._viewer.url, self._viewer.admin_key)
        except PhasewiseError as error:
            return Text(f"{error.message}. Any key goes back.")
        return Group(render_request(life, missing), Text("\nAny key goes back.", style="dim"))


def after_key(choices: LiveChoices, key: str, listed: int) -> LiveChoices:
    """The choices after a key was pressed, with so many requests on the screen."""
    if choices.typing:
        return _after_typing(choices, key)
    if key == "s":
        return replace(choices, sort=SORTS[(SORTS.index(choices.sort) + 1) % len(SORTS)], selected=0)
    if key == "/":
        return replace(choices, typing=True, only="")
    if key in {"f", " "}:
        return replace(choices, frozen=not choices.frozen)
    if key in {_UP, "k", _DOWN, "j"}:
        step = 1 if key in {_DOWN, "j"} else -1
        return replace(choices, selected=max(0, min(listed - 1, choices.selected + step)))
    return choices


def _after_typing(choices: LiveChoices, key: str) -> LiveChoices:
    if key in {_ENTER, _ESCAPE}:
        return replace(choices, typing=False, only="" if key == _ESCAPE else choices.only)
    typed = choices.only[:-1] if key == _BACK else choices.only + (key if key.isprintable() else "")
    return replace(choices, only=typed, selected=0)


@contextmanager
def _keys_into(keys: asyncio.Queue[str]) -> Iterator[None]:
    """Every key that is pressed, at once and without an echo; arrows as the terminal sends them."""
    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)

    def read() -> None:
        typed = os.read(number, 64).decode(errors="replace").replace("\r", _ENTER)
        for key in (typed,) if typed.startswith(_ESCAPE) else typed:
            keys.put_nowait(key)

    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSADRAIN, before)

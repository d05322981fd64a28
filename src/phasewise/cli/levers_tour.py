"""`phasewise levers --tour`: plays five runs, each with its prediction first, and draws them."""

from __future__ import annotations

import os
from pathlib import Path

from phasewise.api.targets import address_of
from phasewise.cli.measuring import command_line
from phasewise.cli.targets import gateway_address
from phasewise.clients import event_loop
from phasewise.experiments.tour.play import play_tour
from phasewise.experiments.tour.stops import FIRST, Outcome, Played, Stop, outcomes
from phasewise.fleet.config import phasewise_home
from phasewise.report.console import err, out
from phasewise.report.tour.page import render_tour
from phasewise.report.tour.text import held_in_words, measured, predicted


def take_tour(
    target: str | None, model: str | None, api_key: str | None, seed: int, html: Path | None
) -> None:
    """Play every stop, print its result, and draw the page."""
    home = phasewise_home(os.environ)
    url = gateway_address(None, home, "TARGET") if target is None else address_of(target, home)
    heard: list[Played] = []

    def begins(stop: Stop) -> None:
        if stop is FIRST:
            out.print(f"{url}: first {stop.title}, to compare with", soft_wrap=True)
            return
        for line in predicted(stop):
            out.print(line)

    def ends(played: Played) -> None:
        heard.append(played)
        if played.stop is not FIRST:
            for line in measured(_latest(heard)):
                out.print(line)

    try:
        event_loop.run(play_tour(url, model, api_key, seed, begins, ends))
    except KeyboardInterrupt:
        err.print("stopped: nothing was written, and the engine still runs")
        raise
    first, *others = heard
    found = outcomes(first, others)
    out.print(f"\n{held_in_words(it for _, every in found for it in every)}")
    if html is not None:
        html.write_text(render_tour(first, found, url, command_line()), encoding="utf-8")
        err.print(f"wrote {html}", soft_wrap=True)


def _latest(heard: list[Played]) -> tuple[Outcome, ...]:
    first, *others = heard
    return outcomes(first, others)[-1][1]

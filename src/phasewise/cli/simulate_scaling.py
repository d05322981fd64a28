"""`phasewise simulate --scale RULE`: tries rules for the number of engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import typer

from phasewise.cli.simulated_engines import ended_by_ctrl_c
from phasewise.core.slo import Slo
from phasewise.experiments.simulate.scaling import ScalingTrial, try_rule
from phasewise.report.console import err, out
from phasewise.report.scaling_view import render_trials, render_trials_page
from phasewise.simulator.fleet import FleetPlan, SimulatedFleet
from phasewise.simulator.traffic import Traffic


def try_rules(
    trials: list[ScalingTrial],
    plan: FleetPlan,
    traffic: Traffic,
    slo: Slo,
    front_end_s: float,
    new_fleet: Callable[[FleetPlan], SimulatedFleet],
    *,
    facts: Mapping[str, Any],
    html: Path | None,
    as_json: bool,
) -> None:
    """Try each and show what came of it."""
    with ended_by_ctrl_c():
        rows = [try_rule(it, plan, traffic, slo, front_end_s, new_fleet) for it in trials]
    origin, seed = str(facts["step_times"]), facts["seed"]
    if html is not None:
        circumstances = {
            "step times": origin,
            "requests": f"{traffic.requests:,}",
            "start-up": f"{trials[0].start_up_s:g} s",
            "engines per pool": f"{trials[0].least} to {trials[0].most}",
        }
        page = render_trials_page(rows, slo, command=str(facts["command"]), circumstances=circumstances)
        html.write_text(page, encoding="utf-8")
        err.print(f"wrote {html}", soft_wrap=True)
    if as_json:
        record = {**facts, "slo": asdict(slo), "rules": [it.to_dict() for it in rows]}
        typer.echo(orjson.dumps(record, option=orjson.OPT_INDENT_2).decode())
    else:
        out.print(render_trials(rows, slo, origin))
        out.print(f"--seed {seed} repeats this run to the bit", soft_wrap=True)

"""A plan on the terminal: the fleet, what it costs, what surrounds it, and whether to disaggregate."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phasewise.core.units import bound, count, milliseconds, number, share, significant
from phasewise.experiments.plan.disaggregation import Pays
from phasewise.experiments.plan.plan import Plan, PlannedFleet
from phasewise.experiments.plan.trials import Goal
from phasewise.experiments.simulate.run import CONFIDENCE

_VERDICTS = {Pays.YES: "pays", Pays.NO: "does not pay", Pays.UNDECIDED: "makes no clear difference"}


def render_plan(plan: Plan, goal: Goal, origin: str, *, priced: bool) -> RenderableType:
    """The choice first, then why."""
    return Group(
        *(Text(it) for it in _choice(plan, goal, priced=priced)),
        Text(),
        _fleets(plan, priced=priced),
        Text(),
        _compared(plan),
        *(Text(it) for it in _disaggregation(plan)),
        *(Text(it) for it in _doubts(plan)),
        Text(origin),
    )


def _choice(plan: Plan, goal: Goal, *, priced: bool) -> list[str]:
    chosen, prices = plan.chosen, plan.prices
    candidate, figures = chosen.candidate, chosen.simulated.figures
    slo = goal.slo
    lines = [
        f"Plan: {candidate.label}, max_num_batched_tokens {candidate.max_num_batched_tokens:,}, "
        f"max_num_seqs {candidate.max_num_seqs:,}",
        f"meets TTFT {bound(slo.ttft_s)} and TPOT {bound(slo.tpot_s)} for {share(figures.attained)} "
        f"of the requests; {share(goal.attainment)} were asked for",
    ]
    if plan.engines is not None:
        low, high = count(plan.engines.low), count(plan.engines.high)
        lines.append(
            f"{CONFIDENCE:.0%} interval: {low} to {high} engines, from the step times' uncertainty alone"
        )
    if plan.binds is not None:
        lines.append(f"what binds with fewer engines: {plan.binds}")
    more = plan.one_more.simulated.figures
    lines.append(
        f"one more engine ({plan.one_more.candidate.label}): {share(more.attained)} within the objective, "
        f"TTFT p90 {milliseconds(more.ttft_p90_s)} ms, TPOT p90 {milliseconds(more.tpot_p90_s)} ms"
    )
    paid = [prices.per_million_input, prices.per_million_output]
    read, written = [f"${significant(it)}" if priced else f"{significant(it)} engine-hours" for it in paid]
    lines.append(f"per million tokens: {read} input (prefill), {written} output (decode)")
    return [*lines, f"per hour: ${significant(prices.per_hour)}"] if priced else lines


def _fleets(plan: Plan, *, priced: bool) -> Table:
    table = Table(
        title="Price against latency (p90, milliseconds)", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("fleet")
    for name in ("$/hour" if priced else "engines", "TTFT", "TPOT", "SLO\nmet", "best at\nits price"):
        table.add_column(name, justify="right")
    for it in plan.fleets:
        table.add_row(*_row(it, chosen=it.candidate == plan.chosen.candidate))
    return table


def _row(fleet: PlannedFleet, *, chosen: bool) -> tuple[str, ...]:
    figures = fleet.simulated.figures
    return (
        f"{fleet.candidate.label}{' (plan)' if chosen else ''}",
        significant(fleet.price_per_hour),
        milliseconds(figures.ttft_p90_s),
        milliseconds(figures.tpot_p90_s),
        share(figures.attained),
        "yes" if fleet.efficient else "",
    )


def _compared(plan: Plan) -> Table:
    table = Table(title="Requests/s carried at the objective", title_justify="left", box=None, pad_edge=False)
    for name in ("engines", "prompt\ntokens", "mixed", "disaggregated"):
        table.add_column(name, justify="right")
    table.add_column("disaggregation")
    for it in (plan.here, *plan.scan):
        loads = (number(it.mixed_per_s), number(it.disaggregated_per_s))
        table.add_row(count(it.engines), count(it.prompt_tokens), *loads, _VERDICTS[it.pays])
    return table


def _disaggregation(plan: Plan) -> list[str]:
    lines = [f"Disaggregation {_VERDICTS[plan.here.pays]} here."]
    if not plan.scan:
        return lines
    if (engines := plan.pays_from_engines) is not None:
        lines.append(f"With these prompts it pays from {count(engines)} engines on, as far as was tried.")
    if (tokens := plan.pays_from_prompt_tokens) is not None:
        lines.append(f"With as many engines it pays from prompts of {count(tokens)} tokens on.")
    if not any(it.pays is Pays.YES for it in (plan.here, *plan.scan)):
        lines.append("It pays at no load and no prompt length that was tried.")
    return lines


def _doubts(plan: Plan) -> list[str]:
    lines = []
    if too_long := plan.chosen.simulated.figures.too_long:
        lines.append(f"{count(too_long)} requests are too long for the context, and count as missed.")
    if any(it.simulated.figures.saturated for it in plan.fleets):
        lines.append("\N{EN DASH}: no TTFT, because the queue grew until the load ended.")
    if plan.requests < plan.enough_requests:
        wanted = f"{plan.enough_requests:,}"
        lines.append(f"The traffic is short for so many open requests: give --requests {wanted} or more.")
    return lines

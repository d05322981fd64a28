"""Runs a planned fleet under its lock and keeps its record: in this process, or as `python -m` of its own.

What the plan holds is decided before; how progress looks is the caller's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from phasewise.errors import PhasewiseError
from phasewise.fleet.fleet_state import FleetState
from phasewise.fleet.pace import Pace
from phasewise.fleet.plan import FleetPlan
from phasewise.fleet.run_file import admin_key_sha256, only_supervisor, write_private, write_state
from phasewise.fleet.supervisor import Supervisor


class Assignment(BaseModel):
    """What a supervisor in the background is told."""

    plan: FleetPlan
    ready_within_s: float


def supervise(
    plan: FleetPlan,
    ready_within_s: float,
    show: Callable[[FleetState], None] | None = None,
    pace: Pace | None = None,
) -> None:
    """Run the fleet until it is stopped. The record goes with it, unless it failed: then it says why."""
    paths = plan.paths

    def publish(state: FleetState) -> None:
        try:
            write_state(paths, state)
        finally:
            # A full disk does not keep the terminal from showing what happens.
            if show is not None:
                show(state)

    async def run() -> None:
        await Supervisor(plan, publish, ready_within_s=ready_within_s, pace=pace).run()

    with only_supervisor(paths):
        _set_old_logs_aside(plan)
        _write_gateway_file(plan)
        asyncio.run(run())
        paths.state.unlink(missing_ok=True)
        paths.gateway_file.unlink(missing_ok=True)


def _write_gateway_file(plan: FleetPlan) -> None:
    file = plan.gateway_file
    if plan.makes_admin_key:
        key_sha256 = admin_key_sha256(plan.paths)
        file = file.model_copy(
            update={"gateway": file.gateway.model_copy(update={"admin_key_sha256": key_sha256})}
        )
    write_private(plan.paths.gateway_file, file.model_dump_json(indent=1).encode())


def _set_old_logs_aside(plan: FleetPlan) -> None:
    for member in plan.members:
        log = Path(member.process.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))


def main() -> None:
    """`python -m phasewise.fleet.supervise FILE`: run what the file says and remove it."""
    file = Path(sys.argv[1])
    assignment = Assignment.model_validate_json(file.read_bytes())
    file.unlink(missing_ok=True)
    try:
        supervise(assignment.plan, assignment.ready_within_s)
    except PhasewiseError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

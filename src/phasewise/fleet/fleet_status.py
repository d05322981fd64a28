"""Checks a fleet's record against the machine: who still lives, who answers. Changes nothing.

The record is written by the supervisor, which may be slower than a look at the process table, or dead.
"""

from __future__ import annotations

import asyncio

from phasewise.adapters.http_client import HttpClient, Timeouts
from phasewise.errors import UpstreamError
from phasewise.fleet import proc_fs
from phasewise.fleet.fleet_state import FleetState, MemberState, Stage

HEALTH_TIMEOUT_S = 3.0
_OVER = frozenset({Stage.FAILED, Stage.STOPPED, Stage.BACKING_OFF, Stage.WAITING})


def supervisor_lives(state: FleetState) -> bool:
    """Whether the process that wrote the record still runs."""
    return state.boot_id == proc_fs.boot_id() and proc_fs.is_alive(state.supervisor)


async def checked(state: FleetState) -> FleetState:
    """The record with every member's stage as it is now."""
    members = await asyncio.gather(*(_checked_member(member, state) for member in state.members))
    return state.model_copy(update={"engines": tuple(members[:-1]), "gateway": members[-1]})


async def _checked_member(member: MemberState, state: FleetState) -> MemberState:
    supervised = supervisor_lives(state)
    if member.stage in _OVER and supervised:
        return member
    if member.process is None or state.boot_id != proc_fs.boot_id() or not proc_fs.is_alive(member.process):
        if member.stage in {Stage.FAILED, Stage.STOPPED}:
            return member
        return member.model_copy(update={"stage": Stage.DEAD, "note": None})
    if member.stage in {Stage.READY, Stage.SILENT}:
        stage = _stage_from(await _health_status(member.url), is_gateway=member.role is None)
        return member.model_copy(update={"stage": stage, "note": None})
    return member


def _stage_from(health_status: int | None, *, is_gateway: bool) -> Stage:
    if health_status == 200:
        return Stage.READY
    # A gateway that answers at all is well; what it lacks is an engine.
    return Stage.WAITING if is_gateway and health_status is not None else Stage.SILENT


async def _health_status(url: str) -> int | None:
    client = HttpClient(url, Timeouts(HEALTH_TIMEOUT_S, HEALTH_TIMEOUT_S, HEALTH_TIMEOUT_S))
    try:
        return (await client.fetch("GET", "/health")).status
    except UpstreamError:
        return None
    finally:
        client.close()

"""Judges a past window and draws single requests in a process of its own, so that no stream waits for it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import orjson

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.slo import Slo
from phasewise.gateway.live.view import LiveView
from phasewise.gateway.processes.records import AllRecords
from phasewise.scheduling import World
from phasewise.scheduling.world import Health

logger = logging.getLogger("phasewise.gateway")

COMMAND = (sys.executable, "-m", "phasewise.cli.gateway_pages")
TIMEOUT_S = 120.0
MOST_LINES = 10_000
MOST_OPEN = 1_000


class GatewayPages:
    """Asks that process; one question at a time."""

    def __init__(self, world: World, records: AllRecords, view: LiveView, url: str) -> None:
        self._world = world
        self._records = records
        self._view = view
        self._url = url
        self._asking = asyncio.Lock()

    async def verdict(self, since_unix_s: float, until_unix_s: float, slo: Slo) -> bytes:
        """The verdict on a window, from what is kept of it, as JSON with the whole page in `html`."""
        ended = await self._records.after("", MOST_LINES, since_unix_s)
        under_way = await self._records.open(MOST_OPEN)
        order = {
            "do": "verdict",
            "url": self._url,
            "since": since_unix_s,
            "until": until_unix_s,
            "slo": (slo.ttft_s, slo.tpot_s),
            "engines": self._engines(),
        }
        return await self._ask(order, ended.texts + under_way.texts)

    async def request(self, request_id: str) -> bytes | None:
        """One request's drawing as JSON with the page in `html`; None if it is unknown."""
        line = await self._records.request(request_id, or_open=True)
        return (
            None if line is None else await self._ask({"do": "request", "engines": self._engines()}, [line])
        )

    def _engines(self) -> list[dict[str, Any]]:
        return [
            {
                "name": state.worker.name,
                "url": state.worker.url,
                "steps_url": state.worker.steps_url,
                "model": state.worker.model,
                "out_of_service": "" if state.health is Health.UP else state.note or state.health.value,
                "loads": self._view.readings(state.worker.name).kept,
            }
            for state in self._world.cluster.snapshot()
        ]

    async def _ask(self, order: dict[str, Any], lines: Sequence[bytes]) -> bytes:
        if self._asking.locked():
            raise RequestRejected(
                RejectionKind.OVERLOADED,
                "another question is being answered",
                hint="try again soon",
            )
        async with self._asking:
            done = await asyncio.to_thread(_run, order, lines)
        if done is None:
            raise RequestRejected(
                RejectionKind.OVERLOADED, "it could not be judged", hint="the gateway's log says why"
            )
        return done


def _run(order: dict[str, Any], lines: Sequence[bytes]) -> bytes | None:
    given = b"\n".join((orjson.dumps(order), *lines))
    try:
        done = subprocess.run(  # noqa: S603 - a command of our own
            COMMAND, input=given, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        logger.error("a question of the live view was not answered: %s %s", type(error).__name__, last)
        return None
    return done.stdout

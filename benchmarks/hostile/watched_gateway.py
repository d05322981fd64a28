"""A gateway whose event loop is watched: `python watched_gateway.py FILE STALLS [callbacks]`.

It is looked at every five milliseconds. `turn` is how late a timer is, as far as the loop's thread worked in
the meantime: what all callbacks of a turn took together. `wall` is how late it is, which a busy host adds to.
With `callbacks` each callback's thread time is measured too, on asyncio's own loop: uvloop's cannot be asked.
At the end STALLS holds how many there were per tenth of a millisecond, and the callback that took longest.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from phasewise.fleet.config import load_gateway_file
from phasewise.gateway.app import build_app
from phasewise.gateway.overload import LOOK_EVERY_S, OverloadWatch
from phasewise.gateway.processes.child import GatewayServer, collect_rarely, server_config
from phasewise.gateway.processes.supervisor import listen

EVERY_S = 0.005
UNIT_S = 1e-4


class Stalls:
    """Counts stalls, and goes on to look as the gateway does by itself."""

    def __init__(self) -> None:
        self.turn: Counter[int] = Counter()
        self.wall: Counter[int] = Counter()
        self.callback: Counter[int] = Counter()
        self.longest: tuple[float, str] = (0.0, "")

    def watch_callbacks(self) -> None:
        """From now on, on a loop of asyncio's own."""
        run, counted = asyncio.Handle._run, self.callback

        def timed(handle: asyncio.Handle) -> None:
            before_s = time.thread_time()
            run(handle)
            took_s = time.thread_time() - before_s
            counted[round(took_s / UNIT_S)] += 1
            if took_s > self.longest[0]:
                self.longest = (took_s, repr(handle))

        asyncio.Handle._run = timed  # type: ignore[assignment] # times every callback
        sys.modules["uvloop"] = None  # type: ignore[assignment]

    async def run(self, watch: OverloadWatch) -> None:
        """Look until cancelled."""
        late_s = worked_s = passed_s = 0.0
        while True:
            due_s, before_s = time.monotonic() + EVERY_S, time.thread_time()
            await asyncio.sleep(EVERY_S)
            late = max(0.0, time.monotonic() - due_s)
            stall = min(late, time.thread_time() - before_s)
            self.turn[round(stall / UNIT_S)] += 1
            self.wall[round(late / UNIT_S)] += 1
            late_s, worked_s, passed_s = max(late_s, late), max(worked_s, stall), passed_s + EVERY_S + late
            if passed_s >= LOOK_EVERY_S:
                watch.look(late_s, worked_s)
                late_s = worked_s = passed_s = 0.0


def main() -> None:
    """Serve, and write what was counted."""
    file, written = map(Path, sys.argv[1:3])
    stalls = Stalls()
    if sys.argv[3:] == ["callbacks"]:
        stalls.watch_callbacks()

    async def run(self: OverloadWatch) -> None:
        await stalls.run(self)

    OverloadWatch.run = run  # type: ignore[method-assign]
    # uvicorn raises the signal again after a clean shutdown; what was counted is written then.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    gateway = load_gateway_file(file)
    app = build_app(gateway)
    try:
        server = GatewayServer(server_config(gateway, app), app.edge, app.gateway.pipeline.start)
        collect_rarely()
        server.run(list(listen(gateway.gateway.host, gateway.gateway.port)))
    finally:
        counts = {"turn": stalls.turn, "wall": stalls.wall, "callback": stalls.callback}
        longest_s, longest = stalls.longest
        by_one = {"longest_s": longest_s, "longest": longest}
        written.write_text(json.dumps({**counts, **by_one, "unit_s": UNIT_S}))


if __name__ == "__main__":
    main()

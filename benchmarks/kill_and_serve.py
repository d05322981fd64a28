"""Kills a real engine under `phasewise up` and times what its users would notice.

    python benchmarks/kill_and_serve.py [--kills 3] [--quick] [--json] [--home DIR]

kill -9 of the engine's front end; then, how long until `phasewise status` has said that it is dead, and until
a streamed request through the gateway is answered again. The last line is one JSON object: kills, status_s
and serves_again_s (the worst of all kills), and whether the first status after each kill told of the death.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from typing import Any

from script import command_line, print_record, say, use_home
from stress.processes import fleet_status, phasewise

FLEET = "kill-bench"
PORTS = ("--port", "18480", "--engine-port", "18400")
GIVE_UP_S = 300.0


def main() -> None:
    """Kill, time, print the record."""
    parser = command_line(__doc__, quick="kill it once")
    parser.add_argument("--kills", type=int, default=3, help="how often to kill the engine")
    parser.add_home()
    options = parser.parse_args()
    use_home(options.home)
    fleet = phasewise("up", "--detach", "--name", FLEET, *PORTS)
    try:
        rounds = [kill_once(fleet) for _ in range(1 if options.quick else options.kills)]
    finally:
        phasewise("down", FLEET)
    record = {
        "kills": len(rounds),
        "status_told_at_once": all(reported for reported, _, _ in rounds),
        "status_s": max(status_s for _, status_s, _ in rounds),
        "serves_again_s": max(again_s for _, _, again_s in rounds),
    }
    print_record(record, options)


def kill_once(fleet: dict[str, Any]) -> tuple[bool, float, float]:
    """One kill: did the first status tell, how long did that take, when was a request served again."""
    os.kill(fleet_status(FLEET)["engines"][0]["process"]["pid"], signal.SIGKILL)
    killed_s = time.monotonic()
    reported = fleet_status(FLEET)["engines"][0]["stage"] in {"dead", "restarting"}
    status_s = time.monotonic() - killed_s
    while not answered(fleet["gateway"]["url"], fleet["model"]):
        if time.monotonic() - killed_s > GIVE_UP_S:
            raise SystemExit(f"the engine did not serve again within {GIVE_UP_S:g} s")
        time.sleep(0.5)
    again_s = time.monotonic() - killed_s
    say(f"killed: status told: {reported}, serves again after {again_s:.1f} s")
    return reported, round(status_s, 2), round(again_s, 1)


def answered(url: str, model: str) -> bool:
    """Whether a streamed request comes back in full."""
    messages = [{"role": "user", "content": "Hi"}]
    body = json.dumps({"model": model, "stream": True, "max_tokens": 4, "messages": messages}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return b"data: [DONE]" in reply.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


if __name__ == "__main__":
    main()

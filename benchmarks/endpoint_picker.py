"""Does the endpoint picker do what its protocol asks for, with a real Envoy, and what does it cost?

    python benchmarks/endpoint_picker.py [--requests 3000] [--quick] [--json]

Envoy runs with deploy/envoy/endpoint-picker.yaml on free ports, in front of stand-in engines; phasewise is a
process of its own. Conformance: one case for each thing that must hold, from the subset hint to a picker that
is down. Cost: processor time of phasewise per request of about 2 kB, its health checks included, and of a
bare picker that only reads and answers messages: what gRPC takes. Decisions:
the gateway's driver and the picker's get equal requests and equal outcomes in one process, with waiting,
failures and clients that leave; each is compared with its reason and its losing candidates.

The last line is one JSON object: conformance_passed and conformance_total with the cases that failed,
cpu_us_per_request, bare_us_per_request, same_decisions (a share) of compared_decisions, envoy and python.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop
from picking.cases import ask, chat, conformance, scene
from picking.decisions import same_decisions
from picking.engine import stand_ins
from picking.envoy_process import PickerPorts, envoy, envoy_version, until_open
from script import command_line, interpreter
from stress.processes import cpu_s, free_port, running

BARE = Path(__file__).parent / "picking" / "bare.py"
AT_ONCE = 8
PROMPT = "river fish " * 160


def main() -> None:
    """Run all parts and print the record."""
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=3_000)
    options = parser.parse_args()
    if options.quick:
        options.requests = 300
    record = {**uvloop.run(measure(options.requests)), "envoy": envoy_version(), "python": interpreter()}
    if options.json:
        print(json.dumps(record))
        return
    for name, found in record.items():
        print(f"{name}: {found}")


async def measure(requests: int) -> dict[str, object]:
    """All figures."""
    results: dict[str, bool] = {}

    def report(case: str, passed: bool) -> None:
        results[case] = passed
        print(f"{'ok    ' if passed else 'FAILED'} {case}", file=sys.stderr)

    await conformance(report)
    equal, compared = await same_decisions(requests)
    return {
        "conformance_passed": sum(results.values()),
        "conformance_total": len(results),
        "failed": [case for case, passed in results.items() if not passed],
        "cpu_us_per_request": round(await cpu_us(requests), 1),
        "bare_us_per_request": round(await bare_us(requests), 1),
        "same_decisions": equal / compared,
        "compared_decisions": compared,
    }


async def cpu_us(requests: int) -> float:
    """Processor time of phasewise for one request."""
    async with scene() as on:
        return await loaded_us(on.envoy, on.pid, requests)


async def bare_us(requests: int) -> float:
    """The same of a picker that does nothing but answer."""
    async with stand_ins(2) as engines:
        ports = PickerPorts(free_port(), free_port())
        command = [sys.executable, str(BARE), f"127.0.0.1:{ports.grpc}", engines[0].address]
        with running(command) as process:
            await until_open(ports.grpc, process, Path("/dev/null"))
            async with envoy(ports, [it.port for it in engines]) as port:
                return await loaded_us(port, process.pid, requests)


async def loaded_us(port: int, pid: int, requests: int) -> float:
    """Processor time of a process for one of these requests."""
    numbers = iter(range(requests))

    async def client() -> None:
        for number in numbers:
            answer = await ask(port, chat(f"{number % 50} {PROMPT}", max_tokens=16))
            if answer.status != 200:
                raise SystemExit(f"a request got {answer.status}")

    await ask(port, chat("the first"))
    before_s = cpu_s(pid)
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return (cpu_s(pid) - before_s) / requests * 1e6


if __name__ == "__main__":
    main()

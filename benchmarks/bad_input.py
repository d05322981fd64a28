"""Does anything a client can send make the gateway fail, hang, grow or tell what it should not?

    python benchmarks/bad_input.py [--cases 20000] [--seed 1] [--quick] [--json]

A gateway process with two tenants' keys stands before two fake engines and one that says what it was told. It
is sent requests of three makes, in two halves:

- by chance (`drawn`), well-framed: nearly half valid, the others wrong in one of some twenty ways (no JSON,
  engine controls, hidden ones, unknown fields, odd values, deep nesting, many lists, patterns that are slow
  to scan, duplicate keys, wrong keys, ...);
- as bytes on connections of their own (`raw`): what two readers could read differently, large and slow heads,
  and valid requests with some bytes changed;
- by schemathesis, from the gateway's own OpenAPI document (`schemathesis`): few, because it is slow.

Each tenant says a word that the other never says. A quarter of all goes to a second gateway too, where nobody
has a key and the engines judge what a request means: its figures are in `without_keys`, with engines_alive,
whether each engine serves afterwards. The last line is one JSON object: cases and how many of
which make; longest_health_s, the longest that /health took during the run, and how often it was asked;
valid_share, and answered_200_share of the valid ones; undocumented_5xx (a status of 500 and above whose code
is not in docs/reference/gateway.md), documented_5xx by code; hangs (nothing within 30 seconds);
not_as_expected (another status than the one that is right) by kind; cross_tenant_leaks, own_words_seen (the
check works: the engine's echo comes back); admin_opened (an admin route answered a client's key);
secrets_in_logs (words of tenants or keys in what the gateway wrote, with a line per request); rss_growth_mb
of the gateway over the second half, and over the first; alive.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from hostile import bodies, by_schema, health, raw
from hostile.cases import ADMIN_KEY, CANARIES, KEYS, Case, RawCase, without_keys
from hostile.judge import Tally
from hostile.sending import send_all, send_raw
from script import command_line, print_record, say
from stress.processes import fake_engines, gateway, resident_mib, running

RAW_SHARE = 0.15
BY_SCHEMA = 300
BY_SCHEMA_QUICK = 44
QUICK_CASES = 1_500
COST = {
    "floor_s": 0.0002,
    "knee_tokens": 256,
    "beyond_knee_s_per_token": 1e-6,
    "attention_s_per_token_pair": 0.0,
    "kv_read_s_per_token": 0.0,
    "per_request_s": 1e-5,
}
SHAPE = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "block_size": 16, "total_blocks": 4096}
SETTINGS: dict[str, Any] = {
    "api_keys": [
        {"sha256": sha256(key.encode()).hexdigest(), "tenant": f"tenant-{name}"} for name, key in KEYS.items()
    ],
    "admin_key_sha256": sha256(ADMIN_KEY.encode()).hexdigest(),
    # Few, so that memory that grows is not just timelines being kept.
    "keep_timelines": 500,
    "limits": {"head_s": 2.0, "body_s": 2.0, "body": "2MiB"},
    "log": {"requests": True, "format": "json"},
}


def main() -> None:
    """Send, judge, print the record."""
    parser = command_line(__doc__, quick=f"send {QUICK_CASES} cases")
    parser.add_argument("--cases", type=int, default=20_000, help="how many to send")
    parser.add_argument("--seed", type=int, default=1, help="makes the same run again")
    options = parser.parse_args()
    count = QUICK_CASES if options.quick else options.cases
    by_schema_count = BY_SCHEMA_QUICK if options.quick else BY_SCHEMA
    record = uvloop.run(run(count, by_schema_count, options.seed))
    print_record(record, options)


async def run(count: int, by_schema_count: int, seed: int) -> dict[str, Any]:
    """One run in two halves."""
    rng = Random(seed)
    say(f"schemathesis draws about {by_schema_count} cases")
    schema_cases = by_schema.draw(by_schema_count, seed)
    raw_cases = raw.draw(rng, int(count * RAW_SHARE)) + raw.large_and_slow()
    drawn = bodies.draw(rng, count - len(raw_cases) - len(schema_cases))
    makes = {"drawn": len(drawn), "raw": len(raw_cases), "schemathesis": len(schema_cases)}
    tally = Tally()
    with (
        fake_engines(2, COST, SHAPE) as urls,
        echo_engine() as echo,
        gateway([*urls, echo], 64, SETTINGS) as served,
    ):
        memory_mib = [resident_mib(served.pid)]
        with health.watched(served.url) as seen:
            for half in (0, 1):
                await send_half(served.url, half, drawn, raw_cases, schema_cases, tally)
                memory_mib.append(resident_mib(served.pid))
                say(f"{sum(tally.sent.values())} cases sent, {memory_mib[-1]:.0f} MiB")
        alive = await still_serves(served.url) and served.process.poll() is None
        wrote = served.log.read_text(errors="replace")
        keyless = await run_without_keys([*urls, echo], drawn[::4], raw_cases[::4], schema_cases[::4])
    return {
        "cases": sum(tally.sent.values()),
        "makes": makes,
        "longest_health_s": round(seen.longest_s, 3),
        "health_asked": seen.asked,
        **summary(tally, wrote, memory_mib),
        "alive": alive,
        "without_keys": keyless,
    }


async def run_without_keys(
    engines: Sequence[str], drawn: list[Case], raw_cases: list[RawCase], schema_cases: list[Case]
) -> dict[str, Any]:
    """The same in front of the same engines, where nobody has a key."""
    tally, settings = Tally(), {name: value for name, value in SETTINGS.items() if name != "api_keys"}
    with gateway(engines, 64, settings) as served:
        memory_mib = [resident_mib(served.pid)]
        with health.watched(served.url) as seen:
            await send_all(served.url, [without_keys(case) for case in drawn], tally)
            memory_mib.append(resident_mib(served.pid))
            await send_raw(served.url, [without_keys(case) for case in raw_cases], tally)
            await send_all(served.url, [without_keys(case) for case in schema_cases], tally)
            memory_mib.append(resident_mib(served.pid))
        alive = await still_serves(served.url) and served.process.poll() is None
        wrote = served.log.read_text(errors="replace")
    say(f"{sum(tally.sent.values())} cases sent without keys, {memory_mib[-1]:.0f} MiB")
    return {
        "cases": sum(tally.sent.values()),
        "longest_health_s": round(seen.longest_s, 3),
        **summary(tally, wrote, memory_mib),
        "alive": alive,
        "engines_alive": all([await still_serves(engine) for engine in engines]),
    }


async def send_half(
    url: str, half: int, drawn: list[Case], raw_cases: list[RawCase], schema_cases: list[Case], tally: Tally
) -> None:
    """Every other case of each make."""
    await send_all(url, drawn[half::2], tally)
    await send_raw(url, raw_cases[half::2], tally)
    await send_all(url, schema_cases[half::2], tally)


async def still_serves(url: str) -> bool:
    """Whether a gateway or an engine serves a valid request."""
    after = Tally()
    await send_all(url, [bodies.valid(Random(0), "a")], after)
    return after.valid_answered_200 == 1


def summary(tally: Tally, wrote: str, memory_mib: list[float]) -> dict[str, Any]:
    """What the run came to."""
    sent = sum(tally.sent.values())
    secrets = (*CANARIES.values(), *KEYS.values(), ADMIN_KEY)
    return {
        "valid_share": round(tally.valid / sent, 3),
        "answered_200_share": round(tally.valid_answered_200 / max(1, tally.valid), 4),
        "undocumented_5xx": tally.undocumented_5xx,
        "documented_5xx": dict(tally.documented_5xx),
        "hangs": tally.hangs,
        "not_as_expected": dict(tally.not_as_expected),
        "cross_tenant_leaks": tally.cross_tenant_leaks,
        "own_words_seen": tally.own_words_seen,
        "admin_opened": tally.admin_opened,
        "secrets_in_logs": sum(wrote.count(secret) for secret in secrets),
        "log_lines": wrote.count("\n"),
        "rss_growth_mb": round(memory_mib[2] - memory_mib[1], 1),
        "rss_growth_first_half_mb": round(memory_mib[1] - memory_mib[0], 1),
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
    }


@contextmanager
def echo_engine() -> Iterator[str]:
    """The engine that says what it was told; its address."""
    script = Path(__file__).parent / "hostile" / "echo_engine.py"
    with (
        tempfile.TemporaryFile() as log,
        running([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=log) as process,
    ):
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


if __name__ == "__main__":
    main()

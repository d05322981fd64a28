"""Do conversations start sooner on the engine that holds their KV?

    python benchmarks/affinity.py [--against POLICY] [--pairs 8] [--fakes] [--quick] [--json] [--home DIR]

Two engines with the demo model, one core each, and two gateways before the same two, which differ in
`gateway.policy` alone: A has the one compared against, B has prefix_affinity. `phasewise compare` then puts
the same conversations on both in turn, block after block (A B B A), and A against itself before that. One
pair of engines serves both arms, so that nothing differs but the placement. Neither arm can warm the other:
every block's prompts begin with words that no block before began with, and what a block leaves in the
engines' caches is in the way of both arms alike.

Conversations have five turns, four are held at once, and a user thinks for half a second. The last line is
one JSON object: `lost` by arm (requests without an answer), `hit_share` by arm (cached of all prompt tokens,
as the engines report them: first turns are cold, so that no placement reaches 1), `ttft_ratio` of B to A at
the median with its interval, `control_differing` (in what A differs from itself: anything there, and nothing
else is to be trusted), and `engine_shares` by arm (of requests). `--fakes` takes fake engines with the demo
model's costs; `--quick` takes quick ones and few short blocks, to see that it runs. It ends with 1 where a
request was not answered, or where B found no more in caches than A.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from script import command_line, print_record, use_home
from stress.processes import fake_engines, free_port, gateway, phasewise

from phasewise.core.timeline import Outcome, Timeline
from phasewise.core.timeline_record import decode
from phasewise.simulator.requests import PRESETS

ARMS = "AB"
FLEET = "affinity"
ADMIN_KEY = "benchmark"
MODEL = "fake-model"
SHAPE = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "block_size": 128, "total_blocks": 364}
CONVERSATIONS = ("--turns", "5", "--think", "0.5", "--concurrency", "4", "--preset", "codegen")


def main() -> None:
    """Measure and print."""
    options = _options()
    use_home(options.home)
    policies = dict(zip(ARMS, (options.against, "prefix_affinity"), strict=True))
    preset = "fast" if options.quick else "cpu-demo" if options.fakes else None
    with _engines(preset) as (model, urls), _gateways(policies, urls, model) as gateways:
        comparison = _compare(gateways, options)
        timelines = {arm: _timelines(url) for arm, url in gateways.items()}
    result = _result(policies, comparison, timelines)
    print_record(result, options)
    if wrong := what_is_wrong(result):
        sys.exit(f"not as promised: {', '.join(wrong)}")


def what_is_wrong(result: Mapping[str, Any]) -> list[str]:
    """The counts that are not what they have to be; nothing here depends on how long something took."""
    wrong = [f"{lost} requests of {arm} were not answered" for arm, lost in result["lost"].items() if lost]
    found = result["hit_share"]
    if found["B"] <= found["A"]:
        wrong.append(f"{found['B']} of prompt tokens were cached under B, {found['A']} under A")
    return wrong


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, quick="few short blocks on fakes")
    parser.add_home()
    parser.add_argument("--against", default="round_robin", help="the policy of arm A")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of blocks")
    parser.add_argument("--control-pairs", type=int, default=4, help="pairs of A against itself")
    parser.add_argument("--requests", type=int, default=20, help="requests in a block")
    parser.add_argument("--fakes", action="store_true", help="fake engines instead of real ones")
    return parser.parse_args()


@contextmanager
def _engines(preset: str | None) -> Iterator[tuple[str, list[str]]]:
    """Two engines, fake ones with a preset's costs or real ones: the model's name, and where they are."""
    if preset is not None:
        with fake_engines(2, asdict(PRESETS[preset]), SHAPE) as urls:
            yield MODEL, urls
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        ports = {"first_engine_port": free_port() % 20_000 + 20_000, "gateway": {"port": free_port()}}
        file.write_text(json.dumps({"name": FLEET, "pools": [{"replicas": 2, "cores": 1}], **ports}))
        try:
            state = phasewise("up", str(file), "--detach", "--no-engine-keys")
            yield state["model"], [engine["url"] for engine in state["engines"]]
        finally:
            phasewise("down", FLEET)


@contextmanager
def _gateways(policies: dict[str, str], urls: Sequence[str], model: str) -> Iterator[dict[str, str]]:
    """A gateway for each arm, before the same engines."""
    admin = {"admin_key_sha256": sha256(ADMIN_KEY.encode()).hexdigest()}
    a, b = ({"policy": policies[arm], **admin} for arm in ARMS)
    with gateway(urls, 64, a, model) as of_a, gateway(urls, 64, b, model) as of_b:
        yield {"A": of_a.url, "B": of_b.url}


def _compare(gateways: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """What `phasewise compare` finds; it also ends with 1 where it cannot tell."""
    if options.quick:
        size = ["--requests", "10", "--prompt-tokens", "300", "--output-tokens", "8"]
        pairs = ["--control-pairs", "0", "--pairs", "4"]
    else:
        size = ["--requests", str(options.requests), "--output-tokens", "32"]
        pairs = ["--control-pairs", str(options.control_pairs), "--pairs", str(options.pairs)]
    command = [sys.executable, "-m", "phasewise.cli", "compare", gateways["A"], gateways["B"], *CONVERSATIONS]
    command += [*size, *pairs, "--warm-up", "0", "--json"]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if run.returncode not in (0, 1) or not run.stdout:
        sys.exit(f"`phasewise compare` ended with {run.returncode}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _timelines(url: str) -> list[Timeline]:
    """Those that a gateway has kept."""
    asked = Request(
        f"{url}/phasewise/v1/requests?limit=10000", headers={"authorization": f"Bearer {ADMIN_KEY}"}
    )
    with urlopen(asked, timeout=30) as reply:
        return [decode(line) for line in reply]


def _result(
    policies: dict[str, str], comparison: dict[str, Any], timelines: dict[str, list[Timeline]]
) -> dict[str, Any]:
    ttft = next(it for it in comparison["comparisons"] if it["metric"]["name"] == "ttft_p50")
    interval = ttft["interval"]
    return {
        "policies": policies,
        "lost": {arm: sum(it.outcome is not Outcome.SUCCEEDED for it in timelines[arm]) for arm in ARMS},
        "hit_share": {arm: _hit_share(timelines[arm]) for arm in ARMS},
        "ttft_p50_s": {"A": ttft["a"], "B": ttft["b"]},
        "ttft_ratio": _ratio(ttft["change"]),
        "ttft_ratio_interval": interval and [_ratio(interval["low"]), _ratio(interval["high"])],
        "ttft_verdict": ttft["verdict"],
        "control_differing": comparison["control"] and comparison["control"]["differing"],
        "pairs": comparison["pairs"],
        "gave_up": comparison["gave_up"],
        "engine_shares": {arm: _engine_shares(timelines[arm]) for arm in ARMS},
    }


def _ratio(change: float | None) -> float | None:
    return None if change is None else round(1 + change, 3)


def _hit_share(timelines: Sequence[Timeline]) -> float:
    prompt_tokens = sum(it.prompt_tokens or 0 for it in timelines)
    return round(sum(it.cached_tokens or 0 for it in timelines) / max(1, prompt_tokens), 3)


def _engine_shares(timelines: Sequence[Timeline]) -> dict[str, float]:
    served = Counter(it.attempts[-1].worker.name for it in timelines if it.attempts)
    return {name: round(served[name] / served.total(), 3) for name in sorted(served)}


if __name__ == "__main__":
    main()

"""`python -m phasewise.fake_engine` runs fake engines until it is interrupted.

The same options under `phasewise fake-engine`; this one needs nothing of the command line package.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence

import uvloop

from phasewise.fake_engine.costs import PRESETS
from phasewise.fake_engine.engine import DEFAULT_MODEL, FakeEngine, FakeEngineConfig
from phasewise.fake_engine.fleet import run_engines
from phasewise.fake_engine.jitter import Jitter
from phasewise.fake_engine.kv_connector import Connector


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(prog="python -m phasewise.fake_engine", description=main.__doc__)
    parser.add_argument("--count", type=int, default=1, help="how many engines (default 1)")
    parser.add_argument("--port", type=int, default=9100, help="port of the first engine (default 9100)")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="fast", help="how long steps take")
    parser.add_argument("--jitter", type=float, default=0.0, help="steps vary by this share of their length")
    parser.add_argument("--seed", type=int, default=0, help="of the jitter (default 0)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"served name (default {DEFAULT_MODEL})")
    parser.add_argument("--hand-over", action="store_true", help="let them hand KV over to one another")
    options = parser.parse_args(argv)
    config = FakeEngineConfig(
        model=options.model,
        port=options.port,
        cost=PRESETS[options.preset],
        jitter=Jitter(options.jitter, options.seed) if options.jitter else None,
        hand_over=Connector() if options.hand_over else None,
    )
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(run_engines(options.count, config, _announce))


def _announce(engines: list[FakeEngine]) -> None:
    print(*(engine.base_url for engine in engines), sep="\n", flush=True)


if __name__ == "__main__":
    main()

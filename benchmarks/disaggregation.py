"""Do streams stop standing still when long prompts are read by another engine, and are the answers the same?

    python benchmarks/disaggregation.py [--rounds 3] [--streams 4] [--lead-in 3] [--prompts 3]
        [--prompt-tokens 6000] [--texts 20] [--quick] [--json] [--home DIR]
        [--record FILE] [--picture FILE] [--redraw FILE]

Two real engines with the demo model, a core each, and a gateway before them. A few streams decode steadily
(short prompts, long answers) while long prompts come one after the other. A block begins with some long
prompts, then the streams, and counts once they flow: the gaps between a stream's tokens as its client sees
them, and the long prompts' time to first token. The arms:
  mixed           both engines do both phases, as `phasewise up` starts them; placed by least_outstanding
  mixed_again     the same once more, as a control
  disaggregated   a prefill and a decode engine, every prompt handed over (`when: always`)
  deciding        the same engines, each prompt handed over where that is expected to pay (`when: auto`)
A round has one block of each. Engines are restarted only where the arrangement changes, and every second
round goes through the arms backwards. The figures are ratios to the mean of both mixed blocks of the round,
with Student's t over the rounds' logarithms.

Through `disaggregated` go also greedy texts, each held against that of an engine asked alone: equal is what
is the same, or parts where the engine's two best tokens were less than half a nat apart. And over all that
this arm did, the decode engine's own counters tell how many prompt tokens it computed
(`recomputed_prompt_tokens`), beyond those of requests that were served there in one piece. It ends with 1
where it computed any, where a text differs, or where nothing was handed over.

The machine has no core left for the gateway and the client: they share those of the engines. `--quick` runs
one short round on fake engines that take as long as the demo model does. `--record` keeps the figures with
one block of each arm for drawing, `--picture` draws them, and `--redraw` draws a record without measuring
and prints its table for the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kv_transfers.fakes import fake_engines
from kv_transfers.figures import figures, in_ms, long_ttft_s, worst_gap_s
from kv_transfers.fleets import Arm, Engines, Layout, gateway, real_engines
from kv_transfers.load import Block, Load, run_block, until_idle
from kv_transfers.picture import draw
from kv_transfers.proof import Proof, records_of, snapshot, way_of
from kv_transfers.table import table
from kv_transfers.texts import TEXTS, compared
from kv_transfers.trace import traced
from script import command_line, print_record, say, use_home

ARMS = {
    Layout.MIXED: (Arm.MIXED, Arm.MIXED_AGAIN),
    Layout.DISAGGREGATED: (Arm.DISAGGREGATED, Arm.DECIDING),
}
QUICK = Load(streams=4, lead_in=2, longs=1, prompt_tokens=1_000)
QUICK_TEXTS = 2
QUICK_ROUNDS = 1


@dataclass
class Measured:
    """What has been seen so far."""

    rounds: list[dict[Arm, Block]] = field(default_factory=list)
    traces: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    proof: Proof = field(default_factory=Proof)
    ways: dict[str, int] = field(default_factory=dict)


def main() -> None:
    """Measure, print the record, draw."""
    options = parser().parse_args()
    use_home(options.home)
    if options.redraw is not None:
        kept = json.loads(options.redraw.read_text())
        write_picture(kept["traces"], options.picture)
        print(table(kept["figures"]))
        return
    load = (
        QUICK
        if options.quick
        else Load(options.streams, options.lead_in, options.prompts, options.prompt_tokens)
    )
    rounds, texts = (QUICK_ROUNDS, QUICK_TEXTS) if options.quick else (options.rounds, options.texts)
    measured = measure(load, rounds, texts, quick=options.quick)
    record = summary(measured, load, quick=options.quick)
    if options.record is not None:
        options.record.write_text(json.dumps({"figures": record, "traces": measured.traces}, indent=1) + "\n")
    if options.picture is not None:
        write_picture(measured.traces, options.picture)
    print_record(record, options)
    if wrong := what_is_wrong(record):
        sys.exit(f"not as promised: {', '.join(wrong)}")


def what_is_wrong(record: Mapping[str, Any]) -> list[str]:
    """The counts that are not what they have to be; nothing here depends on how long something took."""
    wrong = []
    if record["recomputed_prompt_tokens"]:
        wrong.append(f"{record['recomputed_prompt_tokens']} prompt tokens were computed again")
    if record["equal_texts"] != record["texts"]:
        wrong.append(f"{record['equal_texts']} of {record['texts']} texts are equal")
    if not record["kv_transfers"]:
        wrong.append("nothing was handed over")
    return wrong


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    options = command_line(__doc__, quick="one short round on fake engines")
    options.add_home()
    options.add_argument("--rounds", type=int, default=3, help="how often every arm is measured")
    options.add_argument("--streams", type=int, default=4, help="answers that decode in the meantime")
    options.add_argument("--lead-in", type=int, default=3, help="long prompts before the streams begin")
    options.add_argument("--prompts", type=int, default=3, help="long prompts in a block")
    options.add_argument("--prompt-tokens", type=int, default=6_000, help="how long they are")
    options.add_argument("--texts", type=int, default=TEXTS, help=f"answers compared, at most {TEXTS}")
    options.add_argument("--record", type=Path, help="keep the figures and what a picture needs")
    options.add_argument("--picture", type=Path, help="draw the last round as an SVG")
    options.add_argument("--redraw", type=Path, help="measure nothing, draw this record into --picture")
    return options


def write_picture(traces: dict[str, Any], file: Path | None) -> None:
    """Draw into the file."""
    if file is None:
        raise SystemExit("where is the picture to go? hint: --picture FILE")
    file.write_text(draw(traces))


def measure(load: Load, rounds: int, texts: int, *, quick: bool) -> Measured:
    """All rounds; the engines stay up from one round into the next where the arrangement is the same."""
    measured = Measured(rounds=[{} for _ in range(rounds)])
    engines: Engines | None = None
    with ExitStack() as stack:
        for number, layout in turns(rounds):
            if engines is None or engines.layout is not layout:
                stack.close()
                say(f"starting two engines: {layout}")
                engines = stack.enter_context(fake_engines(layout) if quick else real_engines(layout))
            # Every second round goes backwards, so that a steady drift falls on all alike.
            for arm in ARMS[layout] if number % 2 == 0 else reversed(ARMS[layout]):
                measure_arm(engines, arm, load, number, measured, texts)
    return measured


def turns(rounds: int) -> Iterator[tuple[int, Layout]]:
    """Which arrangement is measured when: each once a round, and the last of a round first in the next."""
    for number in range(rounds):
        for layout in Layout if number % 2 == 0 else reversed(Layout):
            yield number, layout


def measure_arm(engines: Engines, arm: Arm, load: Load, number: int, measured: Measured, texts: int) -> None:
    """One block behind a gateway of its own, and what belongs to the arm beside it."""
    serving: AbstractContextManager[str] = gateway(engines, arm)
    with serving as url:
        if arm is Arm.DISAGGREGATED:
            block = asyncio.run(proved(engines, url, load, number, measured, texts))
        else:
            block = asyncio.run(counted(engines, url, load, seed(number, arm)))
        records = asyncio.run(records_of(url))
        measured.traces[arm] = asyncio.run(traced(block, engines.steps_urls))
    measured.rounds[number][arm] = block
    for record in records:
        key = f"{arm}:{way_of(record)}"
        measured.ways[key] = measured.ways.get(key, 0) + 1
    reported = f"worst gap {in_ms(worst_gap_s(block))} ms, long prompts' TTFT {long_ttft_s(block):.2f} s"
    say(f"round {number + 1}, {arm}: {reported}")


def seed(number: int, arm: Arm) -> int:
    """Prompts of their own for every block: none finds another's in an engine's cache."""
    return 100 * number + list(Arm).index(arm)


async def counted(engines: Engines, url: str, load: Load, block_seed: int) -> Block:
    """One block, from idle to idle."""
    block = await run_block(url, engines.model, load, block_seed)
    await until_idle(engines.urls)
    return block


async def proved(
    engines: Engines, url: str, load: Load, number: int, measured: Measured, texts: int
) -> Block:
    """A block between two readings of the decode engine's counters; in the first round texts are compared."""
    decode = engines.url("decode")
    before = await snapshot(decode)
    if not measured.texts:
        measured.texts = await compared(url, engines.url("prefill"), engines.model, texts)
    block = await counted(engines, url, load, seed(number, Arm.DISAGGREGATED))
    name = next(str(worker["name"]) for worker in engines.workers if worker["url"] == decode)
    measured.proof.add(before, await snapshot(decode), await records_of(url), name)
    return block


def summary(measured: Measured, load: Load, *, quick: bool) -> dict[str, Any]:
    """The record that is printed."""
    return {
        **figures(measured.rounds),
        **asdict(measured.proof),
        **measured.texts,
        "served": dict(sorted(measured.ways.items())),
        **asdict(load),
        "rounds": len(measured.rounds),
        "quick": quick,
    }


if __name__ == "__main__":
    main()

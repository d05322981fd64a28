"""Measures what binds each phase on a real engine whose model is large enough to be bound by memory.

    python benchmarks/two_phases.py [--quick] [--json]

vLLM runs a Llama of 1.2 billion parameters with weights of its own making (`--load-format dummy`), in float32
on one core: its speed depends on shapes, not on weights. `phasewise engine calibrate` fits its steps; one
core's memory and arithmetic are measured before and after, and the better of both counts. With `--quick` a
model of a tenth of the size is probed for a short time.

The last line is one JSON object: how busy math and memory are in the longest prefill step and in a decode
step of one stream (prefill_math_share, prefill_memory_share, decode_math_share, decode_memory_share), what a
token takes in eight streams at once against one alone, each in turn and by the clock of the client
(decode_batch8_over_batch1), the exponent with which a prompt's time grows (ttft_exponent), what `model sheet`
predicts from the measured peaks against what was measured (sheet_error, the median of its absolute log
ratio), and the calibration itself.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from planted.fleet import PHASEWISE, CommandFailed
from script import command_line, interpreter, use_home

import phasewise
from phasewise.benchmark.calibrate.machine import core_flops_per_s, core_read_bytes_per_s
from phasewise.clients.http_client import HttpClient, Timeouts
from phasewise.clients.sse import EventSplitter
from phasewise.costs.roofline.accelerators import ASSUMED, Accelerator
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import Arithmetic
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes
from phasewise.fleet.engines.known_models import resolve_model
from phasewise.gateway.health import first_model

HERE = Path(__file__).resolve().parent
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 8}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
MINUTES, QUICK_MINUTES = 4.5, 0.5
TOKENS, ROUNDS = 16, 3
TIMEOUTS = Timeouts(connect_s=10.0, head_s=120.0, idle_s=120.0)
PORT = 19480


def main() -> None:
    """Start the engine, calibrate it, and print what binds its phases."""
    parser = command_line(__doc__, quick="a small model, for a short time")
    options = parser.parse_args()
    use_home()
    shape = SHAPE | (SMALL if options.quick else {})
    before = peaks()
    with tempfile.TemporaryDirectory(prefix="two-phases-") as scratch:
        found = calibrated(shape, Path(scratch), QUICK_MINUTES if options.quick else MINUTES, options.json)
    after = peaks()
    read, flops = max(before[0], after[0]), max(before[1], after[1])
    print(json.dumps(record(shape, found, read, flops)))


def peaks() -> tuple[float, float]:
    """What one core reads and multiplies in a second."""
    return core_read_bytes_per_s(), core_flops_per_s()


def calibrated(shape: dict[str, Any], scratch: Path, minutes: float, silent: bool) -> dict[str, Any]:
    """The engine's steps, by `phasewise engine calibrate`."""
    model = scratch / "shape"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    known = Path(resolve_model("smollm2-135m", Path(os.environ["PHASEWISE_HOME"])))
    for name in TOKENIZER_FILES:
        if (known / name).exists():
            shutil.copy(known / name, model / name)
    fleet = scratch / "two-phases.yaml"
    fleet.write_text(
        f"version: 1\nname: two-phases\nmodel: {model}\ngateway: {{port: {PORT}}}\nengine_keys: false\n"
        f"first_engine_port: {PORT + 20}\npools:\n"
        "  - name: shape\n    cores: 1\n"
        "    engine_flags: [--load-format, dummy, --dtype, float32]\n"
        "    levers: {max_num_seqs: 16, max_model_len: 2048, kv_cache_memory_bytes: 2GiB}\n",
        encoding="utf-8",
    )
    run("up", str(fleet), "--detach", silent=silent)
    try:
        done = run(
            "engine",
            "calibrate",
            f"http://127.0.0.1:{PORT + 20}",
            "--minutes",
            f"{minutes:g}",
            "--dtype",
            "float32",
            "--config",
            str(model),
            "--json",
            silent=silent,
        )
        found: dict[str, Any] = json.loads(done)
        found["batches"] = asyncio.run(batches(f"http://127.0.0.1:{PORT + 20}"))
    finally:
        run("down", "two-phases", silent=silent)
    return found


async def batches(url: str) -> dict[int, float]:
    """What a token takes in one stream and in eight at once, in turn: the medians."""
    client, gaps = HttpClient(url, TIMEOUTS), {1: list[float](), 8: list[float]()}
    model = await first_model(client)
    body = orjson.dumps(
        {"model": model, "prompt": "Two phases:", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    )

    async def stream() -> list[float]:
        times_s: list[float] = []
        headers = [(b"content-type", b"application/json")]
        async with await client.send("POST", "/v1/completions", headers=headers, body=body) as reply:
            events = EventSplitter()
            while data := await reply.read():
                times_s += [time.monotonic() for event in events.feed(data) if b"[DONE]" not in event]
        return times_s

    try:
        for streams in (1, 8) * ROUNDS:
            for times_s in await asyncio.gather(*(stream() for _ in range(streams))):
                # The last tokens: by then all of them have begun, and none has ended.
                last = times_s[-TOKENS // 2 : -1]
                gaps[streams] += [after - before for before, after in pairwise(last)]
    finally:
        client.close()
    return {streams: median(seen) for streams, seen in gaps.items()}


def run(*words: str, silent: bool) -> str:
    """A command's output; its progress goes to the terminal unless it is to be silent."""
    errors = subprocess.PIPE if silent else None
    done = subprocess.run([*PHASEWISE, *words], stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(words)}: {(done.stderr or done.stdout)[-2000:]}")
    if not silent:
        print(done.stdout[-1500:], file=sys.stderr)
    return done.stdout


def record(shape: dict[str, Any], found: dict[str, Any], read: float, flops: float) -> dict[str, Any]:
    """The figures, with peaks that were measured when the engine was not running."""
    predicted = [it for it in found["predictions"] if it["predicted"] is not None]
    prefills = [it for it in predicted if it["kind"] == "prefill"]
    device = Accelerator(
        name="one core of this machine",
        peak_flops={Arithmetic.SIXTEEN_BIT: flops},
        bandwidth_bytes_per_s=read / 2,  # float32: twice the bytes of what the sheet counts
        memory_bytes=24e9,
        link_bytes_per_s=0.0,
        price_per_hour=0.0,
        chunk_tokens=2048,
        max_num_seqs=16,
        sources={},
    )
    assumed = ASSUMED.with_values({"compute": 1.0, "bandwidth": 1.0, "overhead_ms": 0.0})
    sheet = Deployment(architecture_of(shape), device, assumptions=assumed)
    ratios = [math.log(sheet_seconds(sheet, it["work"]) / it["predicted"]["seconds"]) for it in predicted]
    longest = prefills[-1] if prefills else None
    alone = next((it for it in predicted if it["kind"] == "decode"), None)
    of_prefill, of_decode = (busy(sheet, it) for it in (longest, alone))
    return {
        "prefill_math_share": of_prefill[0],
        "prefill_memory_share": of_prefill[1],
        "decode_math_share": of_decode[0],
        "decode_memory_share": of_decode[1],
        "decode_batch8_over_batch1": round(found["batches"][8] / found["batches"][1], 3),
        "ttft_exponent": exponent(prefills),
        "sheet_error": round(median(map(abs, ratios)), 3) if ratios else None,
        "prefill_tokens": None if longest is None else longest["work"]["prompt_tokens"],
        "parameters": sheet.architecture.parameters,
        "core_reads_gb_per_s": round(read / 1e9, 2),
        "core_gflops": round(flops / 1e9, 1),
        "stolen_share": found["stolen_share"],
        "python": interpreter(),
        "phasewise": phasewise.__version__,
        "calibration": found,
    }


def chunk_of(work: dict[str, Any]) -> PrefillChunk:
    """The same step as the sheet names it."""
    if streams := work.get("decode_tokens"):
        return decodes(streams, work["kv_read_tokens"] // streams)
    return PrefillChunk(work["prompt_tokens"])


def sheet_seconds(sheet: Deployment, work: dict[str, Any]) -> float:
    """What the sheet predicts for a step."""
    return sheet.step_seconds(chunk_of(work))


def busy(sheet: Deployment, step: dict[str, Any] | None) -> tuple[float | None, float | None]:
    """How busy math and memory are in a step; None if a short calibration has not seen its like."""
    if step is None:
        return None, None
    demand, rates, seconds = sheet.demand(chunk_of(step["work"])), sheet.rates, step["predicted"]["seconds"]
    return (
        round(demand.flops / rates.flops_per_s / seconds, 3),
        round(demand.memory_bytes / rates.bytes_per_s / seconds, 3),
    )


def exponent(prefills: list[dict[str, Any]]) -> float | None:
    """By which power of its length a prompt's time grows, over the two longest."""
    if len(prefills) < 2:
        return None
    short, long = prefills[-2:]
    times = long["predicted"]["seconds"] / short["predicted"]["seconds"]
    return round(
        math.log(times) / math.log(long["work"]["prompt_tokens"] / short["work"]["prompt_tokens"]), 3
    )


if __name__ == "__main__":
    main()

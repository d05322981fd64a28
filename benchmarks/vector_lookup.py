"""What a look-up of a question's neighbours in Redis costs: by our own commands, and by RedisVL's index.

    pip install redisvl
    python benchmarks/vector_lookup.py [--entries 10000] [--rounds 10] [--lookups 200] [--json]

Both ask the same real Redis with vector search for the four nearest of one scope among as many answers, one
after the other, in one process. Rounds are interleaved; figures are medians over the rounds of this process's
own processor time for a look-up: `ours_cpu_us`, `redisvl_cpu_us`, and `again_cpu_us`, ours a second time as
the control. Ours includes reading the stored answers, RedisVL's ends with dictionaries of strings.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from script import command_line, interpreter, print_record, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from phasewise.clients.embedders import unit_vector
from phasewise.clients.redis_answers import RedisAnswers
from phasewise.core.caching import StoredAnswer
from tests.redis_search import running_redis_search

DIMENSIONS, NEAREST, SCOPE, PREFIX, SPACE = 384, 4, "a" * 64, "lookup", "measured"
ANSWER = "You find this in your account, under Help. " * 12


def main() -> None:
    """Fill a Redis, ask it in turns, and print the record."""
    parser = command_line(__doc__, quick="few answers and look-ups: proves that the script runs")
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lookups", type=int, default=200, help="of each kind in each round")
    options = parser.parse_args()
    if options.quick:
        options.entries, options.rounds, options.lookups = 200, 2, 10
    with (
        tempfile.TemporaryDirectory(prefix="phasewise-lookup-") as folder,
        running_redis_search(Path(folder)) as redis,
    ):
        figures = asyncio.run(measure(redis.url, options.entries, options.rounds, options.lookups))
    print_record({"interpreter": interpreter(), "entries": options.entries, **figures}, options)


async def measure(url: str, entries: int, rounds: int, lookups: int) -> dict[str, Any]:
    """The medians of all kinds of look-up."""
    rng = np.random.default_rng(1)
    store = RedisAnswers(url, PREFIX)
    await store.start(SPACE, DIMENSIONS)
    vectors = [unit_vector(rng.standard_normal(DIMENSIONS)) for _ in range(entries)]
    for number, vector in enumerate(vectors):
        await store.put(answer(number, vector))
    say(f"{entries:,} answers are stored")

    async def ours(vector: bytes) -> int:
        return len(await store.nearest(SCOPE, vector, NEAREST))

    kinds: dict[str, Callable[[bytes], Awaitable[int]]] = {"ours": ours, "again": ours}
    version, redisvl = await redisvl_index(url)
    if redisvl is not None:
        kinds["redisvl"] = redisvl
    spent: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        asked = [vectors[int(rng.integers(entries))] for _ in range(lookups)]
        for name, look_up in kinds.items():
            before = time.process_time()
            for vector in asked:
                if await look_up(vector) != NEAREST:
                    raise SystemExit(f"error: {name} did not find {NEAREST} neighbours")
            spent[name].append((time.process_time() - before) / lookups * 1e6)
    await store.close()
    return {"redisvl": version, **{f"{name}_cpu_us": round(median(spent[name]), 1) for name in kinds}}


async def redisvl_index(url: str) -> tuple[str | None, Callable[[bytes], Awaitable[int]] | None]:
    """RedisVL on the same index, if it is installed."""
    try:
        redisvl, index, query = map(import_module, ("redisvl", "redisvl.index", "redisvl.query"))
        filters, client = import_module("redisvl.query.filter"), import_module("redis.asyncio")
    except ImportError:
        say("redisvl is not installed: only our own look-ups are measured")
        return None, None
    schema = {
        "index": {
            "name": f"{PREFIX}:index:{SPACE}",
            "prefix": f"{PREFIX}:answer:{SPACE}",
            "storage_type": "hash",
        },
        "fields": [
            {"name": "scope", "type": "tag"},
            {
                "name": "vector",
                "type": "vector",
                "attrs": {"dims": DIMENSIONS, "algorithm": "hnsw", "distance_metric": "cosine"},
            },
        ],
    }
    search = index.AsyncSearchIndex.from_dict(schema, redis_client=client.from_url(url))

    async def look_up(vector: bytes) -> int:
        asked = query.VectorQuery(
            vector=vector,
            vector_field_name="vector",
            num_results=NEAREST,
            return_fields=["answer"],
            filter_expression=filters.Tag("scope") == SCOPE,
        )
        return len(await search.query(asked))

    return str(redisvl.__version__), look_up


def answer(number: int, vector: bytes) -> StoredAnswer:
    """An answer of usual length."""
    return StoredAnswer(
        key=f"{number:064d}",
        scope=SCOPE,
        tenant="tenant",
        namespace="default",
        model="model",
        question=f"How do I do the thing of number {number}?",
        text=ANSWER,
        made_unix_s=time.time(),
        expires_unix_s=time.time() + 3_600,
        vector=vector,
    )


if __name__ == "__main__":
    main()

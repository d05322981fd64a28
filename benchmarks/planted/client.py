"""Clients that do what phasewise's load generator never would: salt prompts, read slowly, ask twice at once.

    python benchmarks/planted/client.py KIND --url URL --seed N [--clients N] ...

Each runs as a process of its own and goes on until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from random import Random
from urllib.parse import urlsplit

from phasewise.clients.http_client import HttpClient
from phasewise.core.errors import UpstreamError
from phasewise.core.request import Endpoint
from phasewise.loadgen.workload.prompts import write_text
from phasewise.loadgen.workload.texts import FREE_TEXT

SALT_WORDS = 12
READ_PAUSE_S = 0.2
RECEIVE_BUFFER_BYTES = 4096
TOP_LOGPROBS = 100
"""Makes a token's chunk more than ten kilobytes long, so that a slow reader soon fills every buffer."""

Ask = Callable[[str], Awaitable[None]]


def main() -> None:
    """Send what was asked for until somebody stops us."""
    options = parse_options()
    rng = Random(options.seed)
    if options.kind == "slow_reader":
        read_slowly(options, rng)
        return
    kinds = {"salted": salted, "free_text": free_text, "pairs": pairs, "logprobs": free_text}
    asyncio.run(closed_loops(options, rng, kinds[options.kind]))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("salted", "free_text", "pairs", "logprobs", "slow_reader"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--clients", type=int, default=1, help="conversations at once")
    parser.add_argument("--shared", type=int, default=0, help="tokens that prompts have in common")
    parser.add_argument("--texts", type=int, default=2, help="texts that are asked about at once")
    parser.add_argument("--own", type=int, default=24, help="tokens of each prompt alone")
    parser.add_argument("--output", type=int, default=16)
    parser.add_argument("--bytes-per-s", type=int, default=8000, help="of a slow reader")
    return parser.parse_args()


async def closed_loops(
    options: argparse.Namespace,
    rng: Random,
    turn: Callable[[Ask, argparse.Namespace, Random, str], Awaitable[None]],
) -> None:
    """So many clients, each asking again as soon as it has its answer."""
    http = HttpClient(options.url)
    common = write_text(options.shared, rng)

    extra = {"logprobs": True, "top_logprobs": 5} if options.kind == "logprobs" else {}

    async def ask(prompt: str) -> None:
        with contextlib.suppress(UpstreamError):
            await http.fetch("POST", Endpoint.CHAT, body=chat_body(options, prompt, temperature=1.0, **extra))

    async def client(own_rng: Random) -> None:
        while True:
            await turn(ask, options, own_rng, common)

    await asyncio.gather(*(client(Random(rng.getrandbits(64))) for _ in range(options.clients)))


async def salted(ask: Ask, options: argparse.Namespace, rng: Random, common: str) -> None:
    """The same long text every time, behind a head that is never the same."""
    await ask(f"{write_text(SALT_WORDS, rng)} {common} {write_text(options.own, rng)}")


async def free_text(ask: Ask, options: argparse.Namespace, rng: Random, common: str) -> None:
    """A story that nobody can guess."""
    await ask(f"{rng.choice(FREE_TEXT.prompts)} Begin with the words: {write_text(options.own, rng)}")


async def pairs(ask: Ask, options: argparse.Namespace, rng: Random, common: str) -> None:
    """Two questions about each of several long texts, all at once; then about others.

    Whoever balances load alone puts the two questions about a text on two engines.
    """
    texts = [write_text(options.shared, rng) for _ in range(options.texts)]
    questions = [f"{text} {write_text(options.own, rng)}" for text in texts for _ in range(2)]
    await asyncio.gather(*map(ask, questions))


def chat_body(options: argparse.Namespace, prompt: str, **fields: object) -> bytes:
    """A streamed request for exactly so many tokens."""
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": options.output,
        "min_tokens": options.output,
        "ignore_eos": True,
        "stream": True,
        **fields,
    }
    return json.dumps(body).encode()


def read_slowly(options: argparse.Namespace, rng: Random) -> None:
    """Clients whose network takes a few kilobytes a second."""
    seeds = [rng.getrandbits(64) for _ in range(options.clients)]
    threads = [threading.Thread(target=slow_client, args=(options, Random(seed))) for seed in seeds]
    for thread in threads:
        thread.start()


def slow_client(options: argparse.Namespace, rng: Random) -> None:
    """One such client: a connection per request, tiny buffers, a pause after every read."""
    address = urlsplit(options.url)
    while True:
        prompt = write_text(options.own, rng)
        body = chat_body(options, prompt, temperature=1.0, logprobs=True, top_logprobs=TOP_LOGPROBS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.connect((address.hostname, address.port))
            head = (
                f"POST {Endpoint.CHAT} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            sock.sendall(head.encode() + body)
            while sock.recv(int(options.bytes_per_s * READ_PAUSE_S)):
                time.sleep(READ_PAUSE_S)


if __name__ == "__main__":
    main()

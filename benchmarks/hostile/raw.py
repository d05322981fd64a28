"""Bytes that are not quite HTTP: smuggled requests, heads without end, broken chunks, changed bytes."""

from __future__ import annotations

from random import Random

from .bodies import chat_fields, dumped
from .cases import KEYS, RawCase, key_header

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def draw(rng: Random, count: int) -> list[RawCase]:
    """So many cases: a third ambiguous, the others valid requests with some bytes changed."""
    cases = []
    for number in range(count):
        tenant = rng.choice(("a", "b"))
        name, value = key_header(KEYS[tenant])
        body = dumped(rng, chat_fields(rng, tenant))
        head = HEAD + name + b": " + value + b"\r\n"
        cases.append(ambiguous(rng, head, body) if number % 3 == 0 else mutated(rng, head, body))
    return cases


def ambiguous(rng: Random, head: bytes, body: bytes) -> RawCase:
    """Something two readers could read differently, with another request behind it."""
    length = b"content-length: %d\r\n" % len(body)
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    kind, data = rng.choice(
        [
            ("both_lengths", head + length + CHUNKED + b"\r\n" + chunk),
            ("two_lengths", head + length + b"content-length: 0\r\n\r\n" + body),
            ("odd_length", head + b"content-length: 0x10\r\n\r\n" + body),
            (
                "long_length",
                head + b"content-length: " + b"0" * 6_000 + b"5\r\nconnection: close\r\n\r\nabcde",
            ),
            ("odd_encoding", head + b"transfer-encoding: chunked, identity\r\n\r\n" + chunk),
            ("odd_encoding", head + b"transfer-encoding: xchunked\r\n\r\n" + chunk),
            ("odd_encoding", head + b"transfer-encoding : chunked\r\n\r\n" + chunk),
            ("broken_chunk", head + CHUNKED + b"\r\n-5\r\n" + body),
            ("broken_chunk", head + CHUNKED + b"\r\n" + chunk.replace(b"\r\n", b"\n", 1)),
            ("broken_chunk", head + CHUNKED + b"\r\nffffffffffffffffff\r\n" + body),
            ("folded_line", head + length + b"x: a\r\n\tb\r\n\r\n" + body),
            ("bare_line_end", (head + length).replace(b"\r\n", b"\n") + b"\n" + body),
            ("zero_byte", head + length + b"x: \x00\r\n\r\n" + body),
            ("absolute_address", head.replace(b" /", b" http://10.0.0.1/", 1) + length + b"\r\n" + body),
            ("upgrade", head + length + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + body),
            ("http_1_0", head.replace(b"1.1", b"1.0") + length + b"\r\n" + body),
            ("http_2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ]
    )
    return RawCase(kind, data + HEALTH, (400,))


def mutated(rng: Random, head: bytes, body: bytes) -> RawCase:
    """A valid request of which some bytes were changed, left out, or put in twice."""
    data = bytearray(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(data))
        way = rng.random()
        if way < 0.4:
            data[place] = rng.randrange(256)
        elif way < 0.7:
            del data[place : place + rng.randint(1, 20)]
        else:
            data[place:place] = data[place : place + rng.randint(1, 200)]
        if not data:
            break
    return RawCase("mutated", bytes(data))


def large_and_slow() -> list[RawCase]:
    """Heads that are too large or come too slowly, and bodies that are not there."""
    slow = [
        RawCase("slow_head", HEAD, (408,)),
        RawCase("slow_head", HEAD[:3], (408,)),
        RawCase("slow_body", HEAD + b"content-length: 50\r\n\r\n{", (401, 408)),
        RawCase("silence", b"", (0,)),
        RawCase("dribbled_head", HEAD + b"x: " + b"y" * 200, (408,), slowly=True),
    ]
    large = [
        RawCase("large_head", HEAD + b"x: " + b"y" * 100_000 + b"\r\n\r\n", (431,)),
        RawCase("large_head", HEAD + b"x: y\r\n" * 5_000 + b"\r\n", (431,)),
        RawCase("large_head", b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n\r\n", (431,)),
        RawCase("large_head", HEAD + b"x: " + b"y" * 1_000_000, (431,)),
        RawCase("large_body", HEAD + b"content-length: 99999999999\r\n\r\n", (413,)),
        RawCase("large_framing", HEAD + CHUNKED + b"\r\n1;" + b"y" * 8_000_000, (401, 413)),
    ]
    return [*large, *slow]

"""Judges whether a body is read on the event loop or in another process, by how long such bodies take."""

from __future__ import annotations

from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.api.body_checks import MOST_CONTAINERS, count_of

MOST_HERE_S = 0.005
"""A body that is expected to take longer is read in another process."""
SMALL_BYTES = 1_500
"""Not worth a judgement."""
VALUE_BYTES = 512
"""A value of JSON takes as long as so many bytes of text: checks visit each."""
START_NS, LEAST_NS, MOST_NS = 5.0, 1.5, 40.0
"""Per byte: at first, and the bounds of what is learnt. Text takes 0.7 to 5, the worst that was found 25."""
LEARNT_FROM_BYTES = 32 * 1024
FORGETS = 16
MOST_COMMAS = 50_000
"""With more, or with more brackets than a body may have, even parsing takes milliseconds."""


@value
class Weight:
    """How much a body is to read: its bytes, and VALUE_BYTES more for each value.

    Where something in it is checked as a schema, marks of patterns and of JSON in strings count as values.
    """

    endpoint: Endpoint
    with_schemas: bool
    size_bytes: int

    @classmethod
    def of(cls, endpoint: Endpoint, body: bytes, values: int, *, with_schemas: bool) -> Weight:
        """Of a parsed body."""
        if with_schemas:
            marks = sum(count_of(body, mark) for mark in (b"(", b"[", b"{")) + count_of(body, b"\\") // 4
            values = max(values, marks)
        return cls(endpoint, with_schemas, len(body) + values * VALUE_BYTES)


class TakesLong(Exception):
    """The body takes too long for the event loop. Caught within this package."""


class ReadingTimes:
    """Learns what reading takes per byte, from thread CPU time, for each endpoint with and without schemas.

    A costly body counts at once, a cheap one slowly. So up to 125 kB of weight is always read here, and never
    more than 3.3 MB: 1 MB of text in about 5 ms. A hostile body of 6,500 values, after many cheap ones, takes
    at most some 40 ms, and the next such body is read elsewhere.
    """

    def __init__(self) -> None:
        self._ns: dict[tuple[Endpoint, bool], float] = {}

    def check_bytes(self, body: bytes) -> None:
        """Before parsing; raises TakesLong."""
        size = len(body)
        if (
            size * LEAST_NS > MOST_HERE_S * 1e9
            or (size > 2 * MOST_CONTAINERS and count_of(body, b"[") + count_of(body, b"{") > MOST_CONTAINERS)
            or (size > 2 * MOST_COMMAS and count_of(body, b",") > MOST_COMMAS)
        ):
            raise TakesLong

    def check(self, weight: Weight) -> None:
        """After parsing, before everything else; raises TakesLong."""
        ns = self._ns.get((weight.endpoint, weight.with_schemas), START_NS)
        if weight.size_bytes * ns > MOST_HERE_S * 1e9:
            raise TakesLong

    def note(self, weight: Weight, took_s: float) -> None:
        """A body of this weight was read, here or elsewhere."""
        if weight.size_bytes < LEARNT_FROM_BYTES:
            return
        kind = weight.endpoint, weight.with_schemas
        before, now = self._ns.get(kind, START_NS), took_s * 1e9 / weight.size_bytes
        learnt = now if now > before else before + (now - before) / FORGETS
        self._ns[kind] = min(MOST_NS, max(LEAST_NS, learnt))

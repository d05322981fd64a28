"""What every figure of a report means, in one sentence each, printed with it.

The arithmetic stands in model/latency.py; tools that use the same words for other things are compared in
docs/explanation/measuring.md.
"""

from __future__ import annotations

from phasewise.model.latency import STALL_FACTOR, STALL_FLOOR_S

DEFINITIONS = {
    "TTFT": "from the moment a request was meant to be sent to its first chunk with content",
    "TPOT": "(E2E - TTFT) / (output tokens - 1) of one request; none for a single token",
    "ITL": "the gap between two chunks with content; pooled over all requests, and as each request's mean",
    "E2E": "from the moment a request was meant to be sent to the end of its answer, if it was whole",
    "stall": f"a gap of at least {STALL_FACTOR:g} times its stream's median and {STALL_FLOOR_S * 1000:g} ms",
    "goodput": "answers per second that met the SLO's TTFT and TPOT; as a share: of all that were offered",
    "throughput": "output tokens per second that arrived in the window, over all requests",
    "generator lag": "from the moment a request was meant to be sent to when it was; part of TTFT",
    "interval": "95%: where the percentile would lie in a repeated run, by block bootstrap over requests",
    "window": "from the end of the warm-up to the last arrival; requests that arrived in it are counted",
}

"""Reports the parts of a request's time to its client: in a header, or in a comment of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phasewise.core.latency import e2e_s, fitted, part_seconds, tpot_s, ttft_breakdown
from phasewise.core.timeline import Outcome, Part, Span, Timeline

SERVER_TIMING = b"server-timing"
"""The header of a plain reply, https://www.w3.org/TR/server-timing/."""
ASKS_FOR_TIMING = b"x-phasewise-timing"
"""The header by which a client asks for the comment, with the value 1."""

_UNEXPLAINED = "unexplained"
# Every plain reply has them, and to format a member of an enum takes long.
_BEFORE = {part: f"{part};dur=" for part in Part}


def server_timing(total_s: float, spans: Sequence[Span]) -> bytes:
    """The value of `Server-Timing` for a plain reply that is about to be sent; milliseconds, by part.

    `total` is the request's age, `unexplained` the time in no span. Every plain reply has it, so it is built
    from the spans alone, without a timeline.
    """
    seconds: dict[Part, float] = {}
    for (part, _), value in part_seconds(spans).items():
        seconds[part] = seconds.get(part, 0.0) + value
    measured_s = sum(seconds.values())
    # Where two clocks measured the same time, the parts are made shorter, so that they add up.
    scale = 1e3 if measured_s <= total_s else 1e3 * total_s / measured_s
    parts = [f"{_BEFORE[part]}{value * scale:.3f}" for part, value in seconds.items()]
    parts.append(f"{_UNEXPLAINED};dur={_ms(max(0.0, total_s - measured_s))}")
    return f"total;dur={total_s * 1e3:.3f}, {', '.join(parts)}".encode()


def timing_comment(timeline: Timeline) -> bytes:
    """A comment for the end of a stream, sent before `[DONE]`; milliseconds, by part.

    Clients ignore comments that they do not know. Empty for a stream without content, which has no first
    token.
    """
    parts = " ".join(f"{name}_ms={_ms(seconds)}" for name, seconds in _parts_of_stream(timeline))
    return f": phasewise {parts}\n\n".encode() if parts else b""


def _parts_of_stream(timeline: Timeline) -> Iterator[tuple[str, float]]:
    measured = ttft_breakdown(timeline)
    if measured is None:
        return
    breakdown = fitted(measured)
    yield "ttft", breakdown.ttft_s
    for part in Part:
        if (seconds := breakdown.seconds(part)) is not None:
            yield part, seconds
    yield _UNEXPLAINED, breakdown.unexplained_s
    # Only `[DONE]` is left to send, so the times of an answered request are defined.
    answered = replace(timeline, outcome=Outcome.SUCCEEDED)
    if (per_token_s := tpot_s(answered)) is not None:
        yield "tpot", per_token_s
    if (whole_s := e2e_s(answered)) is not None:
        yield "e2e", whole_s


def _ms(seconds: float) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(seconds * 1e3, 3) + 0.0:.3f}"

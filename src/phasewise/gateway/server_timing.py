"""Tells a client where its own request's time went: in a header of a plain reply, in a comment of a stream.

It only writes down what a timeline holds; who asks for it, and when it is sent, is the relay's matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from phasewise.model.latency import e2e_s, part_seconds, tpot_s, ttft_breakdown
from phasewise.model.timeline import Outcome, Part, Span, Timeline

SERVER_TIMING = b"server-timing"
"""The header of a plain reply, https://www.w3.org/TR/server-timing/."""
ASKS_FOR_TIMING = b"x-phasewise-timing"
"""The header by which a client asks for the comment."""

_RESIDUAL = "residual"


def wants_timing(value: bytes | None) -> bool:
    """Whether this value of `x-phasewise-timing` asks for the comment."""
    return value == b"1"


def server_timing(total_s: float, spans: Sequence[Span]) -> bytes:
    """The value of `Server-Timing` for a reply that is about to be sent as a whole; milliseconds, by part.

    `total` is the request's age, `residual` what no span tells of it. Every plain reply has it, so it is made
    of the spans alone, without a timeline.
    """
    seconds: dict[Part, float] = {}
    for (part, _), value in part_seconds(spans).items():
        seconds[part] = seconds.get(part, 0.0) + value
    told = [f"{part};dur={value * 1e3:.3f}" for part, value in seconds.items()]
    rest_s = total_s - sum(seconds.values())
    return f"total;dur={total_s * 1e3:.3f}, {', '.join([*told, f'{_RESIDUAL};dur={_ms(rest_s)}'])}".encode()


def timing_comment(timeline: Timeline) -> bytes:
    """A comment for a stream whose end has been announced, to be sent before `[DONE]`; milliseconds, by part.

    Clients pass over comments, so those that do not know of it lose nothing. Empty for a stream that had no
    content: there is no first token to tell of.
    """
    told = " ".join(f"{name}_ms={_ms(seconds)}" for name, seconds in _parts_of_stream(timeline))
    return f": phasewise {told}\n\n".encode() if told else b""


def _parts_of_stream(timeline: Timeline) -> Iterator[tuple[str, float]]:
    breakdown = ttft_breakdown(timeline)
    if breakdown is None:
        return
    yield "ttft", breakdown.ttft_s
    for part in Part:
        if (seconds := breakdown.seconds(part)) is not None:
            yield part, seconds
    yield _RESIDUAL, breakdown.residual_s
    # Nothing but `[DONE]` is left to come: what is defined for answered requests is defined for this one.
    answered = replace(timeline, outcome=Outcome.SUCCEEDED)
    if (per_token_s := tpot_s(answered)) is not None:
        yield "tpot", per_token_s
    if (whole_s := e2e_s(answered)) is not None:
        yield "e2e", whole_s


def _ms(seconds: float) -> str:
    # Adding zero turns a rounded -0.0 into 0.0.
    return f"{round(seconds * 1e3, 3) + 0.0:.3f}"

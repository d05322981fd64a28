"""The expected and the measured times of a request, term by term.

The gateway recorded the expected times before it sent the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.core.decision import Option
from phasewise.core.latency import e2e_s, part_seconds, ttft_s
from phasewise.core.timeline import Attempt, AttemptKind, Outcome, Part, Timeline

_READING = (Part.PREFILL, Part.PREFILL_OTHERS)
_WAITING = (Part.ENGINE_QUEUE, Part.STEP_IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class Held:
    """One term: expected and measured, None if not observed."""

    name: str
    expected_s: float | None
    measured_s: float | None


def held(timeline: Timeline) -> tuple[Held, ...]:
    """The terms of the chosen option, beside the request's measured times.

    If the first attempt failed, another option served the request: then only measured times are given.
    """
    option = taken_option(timeline)
    expected = _expected(option)
    reader, writer = timeline.reading_attempt, timeline.serving_attempt
    transferred = writer is not None and writer.kind is AttemptKind.DECODE_SIDE
    first_s, whole_s = ttft_s(timeline), e2e_s(timeline)
    measured = {
        "wait": _seconds(reader, _WAITING),
        "prefill": _seconds(reader, _READING),
        # The step that gives the first token is the last of a KV transfer; its engine reports it as prefill.
        "KV transfer": _seconds(writer, (Part.KV_TRANSFER, *_READING)) if transferred else None,
        "first token": first_s,
        "decode": None if first_s is None or whole_s is None else whole_s - first_s,
        "delay to others": None,
    }
    rows = tuple(Held(name, expected.get(name), seconds) for name, seconds in measured.items())
    return rows if transferred else tuple(row for row in rows if row.name != "KV transfer")


def _expected(option: Option | None) -> dict[str, float]:
    if option is None:
        return {}
    terms = option.terms
    return {
        "wait": terms.wait_s,
        "prefill": terms.prefill_s,
        "KV transfer": terms.kv_transfer_s,
        "first token": terms.ttft_s,
        "decode": terms.decode_s,
        "delay to others": terms.delay_s,
    }


def taken_option(timeline: Timeline) -> Option | None:
    """The option that served the request; None if there were no options or its attempt failed."""
    placement, writer, reader = timeline.placement, timeline.serving_attempt, timeline.prefill_attempt
    if placement is None or not placement.options or writer is None:
        return None
    first = placement.options[0]
    same = first.worker == writer.worker and first.prefill == (reader.worker if reader else None)
    return first if same and writer.outcome is not Outcome.FAILED else None


def _seconds(attempt: Attempt | None, parts: tuple[Part, ...]) -> float | None:
    if attempt is None:
        return None
    seen = [value for (part, _), value in part_seconds(attempt.spans).items() if part in parts]
    return sum(seen) if seen else None

"""What was expected of a request beside what became of it, term by term.

Pure. The expectations are the decision's, written down before the request was sent; asking a gateway for them
and printing them is the command line's.
"""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.model.decision import Option
from phasewise.model.latency import e2e_s, part_seconds, ttft_s
from phasewise.model.timeline import Attempt, AttemptKind, Outcome, Part, Timeline

_READING = (Part.PREFILL, Part.PREFILL_OTHERS)
_WAITING = (Part.ENGINE_QUEUE, Part.STEP_IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class Held:
    """One term: what was expected and what was measured, None where nobody could tell."""

    name: str
    expected_s: float | None
    measured_s: float | None


def held(timeline: Timeline) -> tuple[Held, ...]:
    """The terms of the way that was taken, beside the request's own times.

    A request whose first attempt failed was served another way than the one that was priced: then only what
    was measured is told.
    """
    option = taken_option(timeline)
    expected = _expected(option)
    reader, writer = timeline.reading_attempt, timeline.serving_attempt
    handed_over = writer is not None and writer.kind is AttemptKind.DECODE_SIDE
    first_s, whole_s = ttft_s(timeline), e2e_s(timeline)
    measured = {
        "wait": _seconds(reader, _WAITING),
        "prefill": _seconds(reader, _READING),
        # The step that gives the first token is the last of a hand-over; its engine reports it as prefill.
        "hand-over": _seconds(writer, (Part.HAND_OVER, *_READING)) if handed_over else None,
        "first token": first_s,
        "decode": None if first_s is None or whole_s is None else whole_s - first_s,
        "delay to others": None,
    }
    rows = tuple(Held(name, expected.get(name), seconds) for name, seconds in measured.items())
    return rows if handed_over else tuple(row for row in rows if row.name != "hand-over")


def _expected(option: Option | None) -> dict[str, float]:
    if option is None:
        return {}
    terms = option.terms
    return {
        "wait": terms.wait_s,
        "prefill": terms.prefill_s,
        "hand-over": terms.hand_over_s,
        "first token": terms.ttft_s,
        "decode": terms.decode_s,
        "delay to others": terms.delay_s,
    }


def taken_option(timeline: Timeline) -> Option | None:
    """The option that the request was served by; None where none was priced, or its attempt failed."""
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

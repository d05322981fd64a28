"""Replays what a gateway recorded: the same flow and world get the same events, each step is compared."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from phasewise.core.errors import ConfigError
from phasewise.core.ports import Lease
from phasewise.core.value import value
from phasewise.core.worker import WorkerRef
from phasewise.scheduling.recorded_form import from_plain
from phasewise.scheduling.recording import EVENTS, RECORD_VERSION, EventPlayer
from phasewise.scheduling.rules import new_world

Event = dict[str, Any]


@value
class Difference:
    """The first event whose replay differs, and `where` its result does."""

    line: int
    where: str
    recorded: str
    replayed: str


@value
class ReplayResult:
    """`decisions` are placements and rejections; `identical` are those before the first difference.

    `grants` are slots given to waiting requests, `failures` failed attempts. `complete`: the record ends with
    the gateway's stop.
    """

    requests: int
    decisions: int
    identical: int
    rejected: int
    grants: int
    failures: int
    events: int
    complete: bool
    difference: Difference | None


def replay(lines: Iterable[bytes | str]) -> ReplayResult:
    """Replay a record up to the first difference, and count the rest. ConfigError if it is not a record."""
    events = _events(lines)
    head = next(events, {})
    if head.get("version") != RECORD_VERSION:
        raise _not_a_record()
    answers = _RecordedAnswers()
    neighbours = answers if head["has_neighbours"] else None
    world = new_world(from_plain(head["rules"]), from_plain(head["workers"]), _NoLimits(), neighbours)
    player, seen = EventPlayer(world), Counter[str]()
    difference, ending, identical = None, None, 0
    for line, event in enumerate(events, 2):
        if event.get("event") == "end":
            ending = event["arguments"]
            break
        seen.update(_kinds(event))
        if difference is None:
            answers.next = deque(event.get("neighbours", ()))
            difference = _compare(line, event, player)
            identical = seen["decisions"] if difference is None else identical
    counts = {
        name: seen[name] for name in ("requests", "decisions", "rejected", "grants", "failures", "events")
    }
    return ReplayResult(**counts, identical=identical, complete=ending == ["stopped"], difference=difference)


def _events(lines: Iterable[bytes | str]) -> Iterator[Event]:
    """Up to a last line that was cut off."""
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            if line[-1:] not in (b"\n", "\n"):
                return
            raise ConfigError(
                f"line {number} of the record is damaged: what follows cannot be compared",
                hint="only a record whose end is missing can be replayed without it",
            ) from None
        yield event


def _not_a_record() -> ConfigError:
    hint = "give the file that gateway.record_decisions names"
    return ConfigError("this is not a record of a gateway's decisions", hint=hint)


def _compare(line: int, event: Event, player: EventPlayer) -> Difference | None:
    if event.get("event") not in EVENTS:
        raise _not_a_record()
    replayed: Event = {}
    try:
        replayed["result"] = getattr(player, event["event"])(*map(from_plain, event["arguments"]))
    except Exception as error:
        replayed["raised"] = type(error).__name__
    recorded: Event = {name: event[name] for name in ("result", "raised") if name in event}
    if recorded == replayed:
        return None
    said = [_words(recorded), _words(replayed)]
    if said[0] == said[1]:
        said = [json.dumps(recorded), json.dumps(replayed)]
    return Difference(line, ".".join(map(str, _where(recorded, replayed))), *said)


def _kinds(event: Event) -> Iterator[str]:
    """What an event counts as."""
    yield "events"
    if event.get("event") == "request":
        yield "requests"
    step = _step(event)
    if step.get("is") == "Reject":
        yield from ("decisions", "rejected")
    elif "decision" in step and not step.get("kv"):  # one that was disaggregated is decided on at its prefill
        yield "decisions"
    outcome = event["arguments"][-1] if event.get("event") == "outcome" else None
    kind = outcome["is"] if isinstance(outcome, dict) else ""
    yield from {"Granted": ("grants",), "Failed": ("failures",)}.get(kind, ())


def _step(event: Event) -> Event:
    """The step that came out; empty if none did."""
    result = event.get("result")
    step = result[0] if isinstance(result, list) else result
    return step if isinstance(step, dict) else {}


def _words(event: Event) -> str:
    if "raised" in event:
        return f"an error, {event['raised']}"
    step, result = _step(event), event["result"]
    if "decision" not in step:
        return f"rejected, {step['reason']}: {step['detail']}" if "reason" in step else json.dumps(result)
    decision = step["decision"]
    where = decision["chosen"] + (f", prefill on {decision['prefill']}" if decision["prefill"] else "")
    return f"{step['is']} on {where} ({decision['policy']}: {decision['reason']})"


def _where(one: Any, other: Any) -> Iterator[str | int]:  # noqa: ANN401 - of a result
    """The path to the first part in which they differ."""
    parts: Iterable[Any] = ()
    if isinstance(one, dict) and isinstance(other, dict):
        parts = [it for it in one if it in other]
    elif isinstance(one, list) and isinstance(other, list):
        parts = range(min(len(one), len(other)))
    for at in parts:
        if one[at] != other[at]:
            yield at
            yield from _where(one[at], other[at])
            return


class _NoLimits:
    """Limits were counted when the record was made."""

    def settle(self, lease: Lease, used_tokens: int | None) -> None:
        """The request has ended."""


class _RecordedAnswers:
    """Implements the port Neighbours with the answers that they gave."""

    def __init__(self) -> None:
        self.next: deque[Any] = deque()

    def booked(self) -> None:
        """Nobody has to know."""

    def served(self, worker: WorkerRef, hashes: Sequence[int], *counts: int) -> None:
        """Nobody has to know."""

    def loads(self) -> Mapping[str, Sequence[int]]:
        """Their loads; in most records there are none."""
        return self.next.popleft() if self.next else {}

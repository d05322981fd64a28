"""Records everything that reaches scheduling from outside, in one order, and each step that comes out.

What flows themselves do to the world is not recorded: the same inputs make them do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import count
from typing import Any, NamedTuple

from phasewise.core.ports import QuotaSettlement
from phasewise.core.request import GenerationRequest
from phasewise.core.worker import Worker
from phasewise.scheduling.breakers import BreakerTrial
from phasewise.scheduling.flow import RequestFlow, request_flow
from phasewise.scheduling.ledger import Neighbours
from phasewise.scheduling.recorded_form import shown, to_plain
from phasewise.scheduling.rules import SchedulingRules, apply_rules, new_world
from phasewise.scheduling.steps import Generate, Outcome, Step, Wait
from phasewise.scheduling.world import World, let_waiting_in

RECORD_VERSION = 2
_OF_BREAKERS = ("begin", "succeeded", "failed", "open", "proved", "abandoned", "adopt", "forget")
RECORDED_CALLS: Mapping[str, Sequence[str]] = {
    "cluster": ("set_workers", "mark_up", "mark_down", "mark_still", "annotate", "report_unreachable"),
    "breakers": _OF_BREAKERS,
    "pairs": _OF_BREAKERS,
    "paces": ("set_workers", "adopt", "learn_read", "learn_step", "learn_fetch"),
    "prefixes": ("served", "adopt", "forget"),
    "queue": ("set_bounds",),
}
"""The methods of a world's parts that change it and that others than flows may call."""
EVENTS = frozenset({"request", "outcome", "begun", "answered", "closed", "let_in", "rules", "shared", "call"})
"""The methods of an EventPlayer that a record may name."""


@dataclass(slots=True)
class _Flow:
    flow: RequestFlow
    step: Step | None = None
    attempts: dict[int, Generate] = field(default_factory=dict)


class EventPlayer:
    """A world and its flows, driven by events: the name of a method here, and its arguments.

    A recorder calls them when they happen, a replay calls them again. What they return has to be the same.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.flows: dict[int, _Flow] = {}
        self.trials: list[BreakerTrial] = []
        self.trial_numbers: dict[BreakerTrial, int] = {}
        self.returned: Any = None

    def request(self, number: int, request: GenerationRequest) -> Any:  # noqa: ANN401
        """A request arrives."""
        flow = request_flow(request, self.world)
        self.flows[number] = _Flow(flow)
        return self._advance(number, partial(next, flow))

    def outcome(self, number: int, outcome: Outcome) -> Any:  # noqa: ANN401
        """A step of a flow has ended; who was granted a slot is the world's decision too."""
        own = self.flows[number]
        granted = own.step.ticket.granted if isinstance(own.step, Wait) else None
        return [self._advance(number, partial(own.flow.send, outcome)), granted]

    def begun(self, number: int, attempt: int) -> None:
        """The first content of an attempt has come."""
        if (note := self.flows[number].attempts[attempt].on_first_content) is not None:
            note()

    def answered(self, number: int, attempt: int) -> None:
        """The trial of a worker has an answer."""
        if (trial := self.flows[number].attempts[attempt].trial) is not None:
            trial.answered = lambda: True

    def closed(self, number: int) -> None:
        """A flow is given up, or has been rejected."""
        self.flows.pop(number).flow.close()

    def let_in(self, now_s: float) -> None:
        """There may be free slots."""
        let_waiting_in(self.world, now_s)

    def rules(self, rules: SchedulingRules) -> None:
        """The gateway was configured again."""
        apply_rules(self.world, rules)

    def shared(self, is_shared: bool) -> None:
        """Other gateways report prefixes, or no longer."""
        self.world.prefixes.is_shared = is_shared

    def call(self, name: str, trial: int | None, *arguments: Any) -> int | None:  # noqa: ANN401
        """A part's method was called; trials have numbers, and a call that is about one has it second."""
        part, _, method = name.partition(".")
        if method not in RECORDED_CALLS[part]:
            raise ValueError(f"{name} is not recorded")
        if trial is not None:
            arguments = (arguments[0], self.trials[trial], *arguments[2:])
        self.returned = getattr(getattr(self.world, part), method)(*arguments)
        if not isinstance(self.returned, BreakerTrial):
            return None
        self.trial_numbers.setdefault(self.returned, len(self.trials))
        self.trials.append(self.returned)
        return len(self.trials) - 1

    def _advance(self, number: int, advance: Callable[[], Step]) -> Any:  # noqa: ANN401
        own = self.flows[number]
        try:
            own.step = advance()
        except StopIteration:
            del self.flows[number]
            return None
        if isinstance(own.step, Generate):
            own.attempts[own.step.attempt] = own.step
        return shown(own.step)


class SchedulingCalls(NamedTuple):
    """The functions through which a gateway enters scheduling: as they are, or recorded."""

    new_world: Callable[..., World] = new_world
    request_flow: Callable[[GenerationRequest, World], RequestFlow] = request_flow
    let_waiting_in: Callable[..., None] = let_waiting_in
    apply_rules: Callable[[World, SchedulingRules], None] = apply_rules


UNRECORDED = SchedulingCalls()


class DecisionRecorder:
    """Records one world. `write` is given the head, and each event once it is over, in plain JSON types."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._player: EventPlayer
        self._inside = False
        self._asked: list[Any] = []
        self._flows = count(1)
        self._trials: dict[tuple[int, int], BreakerTrial] = {}
        self._shared = False

    @property
    def calls(self) -> SchedulingCalls:
        """The recorded functions."""
        return SchedulingCalls(
            self._new_world,
            lambda request, _world: self._flow(request),
            lambda _world, now_s: self._take("let_in", now_s),
            lambda _world, rules: self._take("rules", rules),
        )

    def _new_world(
        self,
        rules: SchedulingRules,
        workers: Sequence[Worker],
        quotas: QuotaSettlement,
        neighbours: Neighbours | None = None,
    ) -> World:
        head = {"version": RECORD_VERSION, "rules": to_plain(rules), "workers": to_plain(workers)}
        self._write({**head, "has_neighbours": neighbours is not None})
        world = new_world(rules, workers, quotas, neighbours)
        self._player = EventPlayer(world)
        for part, methods in RECORDED_CALLS.items():
            _wrap(getattr(world, part), methods, partial(partial, self._call, part))
        if neighbours is not None:
            _wrap(neighbours, ("loads",), partial(partial, self._ask))
        return world

    def _flow(self, request: GenerationRequest) -> RequestFlow:
        number, flows = next(self._flows), self._player.flows
        self._take("request", number, request)
        try:
            while number in flows:
                outcome = yield self._watched(number, flows[number].step)
                self._take("outcome", number, outcome)
        finally:
            if number in flows:
                self._take("closed", number)
            for key in [key for key in self._trials if key[0] == number]:
                del self._trials[key]

    def _call(self, part: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        """A call of a part's method: only those from outside flows are recorded."""
        if self._inside:
            return method(*arguments, **named)
        plain = signature(method).bind(*arguments, **named).args
        about = plain[1] if len(plain) > 1 else None
        trial = self._player.trial_numbers.get(about) if isinstance(about, BreakerTrial) else None
        if trial is not None:
            plain = (plain[0], None, *plain[2:])
        self._take("call", f"{part}.{method.__name__}", trial, *plain)
        return self._player.returned

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        answer = method(*arguments)
        if self._inside:
            self._asked.append(answer)
        return answer

    def _take(self, kind: str, *arguments: Any) -> None:  # noqa: ANN401
        self._note_changes()
        event = {"event": kind, "arguments": to_plain(arguments)}
        self._inside = True
        try:
            event["result"] = getattr(self._player, kind)(*arguments)
        except Exception as error:
            event["raised"] = type(error).__name__
            raise
        finally:
            self._inside = False
            if any(self._asked):
                event["neighbours"] = self._asked
            self._asked = []
            self._write(event)

    def _note_changes(self) -> None:
        """What scheduling looks up by itself: it does not change during an event."""
        for key in [key for key, trial in self._trials.items() if trial.answered()]:
            del self._trials[key]
            self._write({"event": "answered", "arguments": key, "result": None})
        if (shared := self._player.world.prefixes.is_shared) is not self._shared:
            self._shared = shared
            self._write({"event": "shared", "arguments": [shared], "result": None})

    def _watched(self, number: int, step: Step | None) -> Step:
        """The step for the driver. What the driver reports while it performs the step is recorded too."""
        if step is None:
            raise RuntimeError("a flow that has ended has no step")
        if not isinstance(step, Generate):
            return step
        if step.trial is not None:
            self._trials[number, step.attempt] = step.trial
        return replace(step, on_first_content=partial(self._take, "begun", number, step.attempt))


def _wrap(owner: object, methods: Sequence[str], wrapped: Callable[[Any], Callable[..., Any]]) -> None:
    for method in methods:
        setattr(owner, method, wrapped(getattr(owner, method)))

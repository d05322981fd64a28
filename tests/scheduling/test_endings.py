"""docs/reference/metrics.md lists every way in which a request can end, and no other."""

from __future__ import annotations

import re

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.ports import LimitKind, NotCounted, OverLimit
from phasewise.core.request import NO_LIMITS, Limits
from phasewise.core.timeline import Outcome
from phasewise.gateway.http_errors import BREAKS_STREAMS
from phasewise.scheduling import (
    CacheHit,
    CacheMiss,
    CountAndLookUp,
    Failed,
    FollowIdentical,
    Generate,
    Granted,
    IdenticalUnderWay,
    LeaderLost,
    LookAgain,
    LookUpCache,
    NotShareable,
    Prefill,
    QuotaAnswered,
    Reject,
    ServeStored,
    Succeeded,
    TimedOut,
    Wait,
    request_flow,
)
from tests.builders import make_request
from tests.paths import ROOT
from tests.scheduling.worlds import make_prefilled, make_split_world, make_world

PAGE = ROOT / "docs" / "reference" / "metrics.md"
DEEPEST = 6
SECONDS_PER_STEP = 10.0

NOT_OF_FLOWS = {(Outcome.CANCELLED, RejectReason.GATEWAY_STOPPED)}
UNMET = frozenset({FailureKind.CONNECTION_REFUSED, FailureKind.NO_SOCKET})
KINDS = (*UNMET, FailureKind.CLOSED, FailureKind.TIMED_OUT)
SPLIT_KINDS = (*KINDS, FailureKind.KV_TRANSFER)
SCENES = (
    {"workers": 2},
    {"workers": 2, "model": "nobody-serves-this"},
    {"workers": 2, "limits": Limits(1, 1, 1)},
    {"workers": 2, "budget": 0.0},
    {"workers": 2, "up": 0},
    {"workers": 1, "slots": 1, "others_before": 1},
    {"workers": 1, "slots": 1, "others_before": 1, "capacity": 0},
    {"workers": 1, "slots": 1, "others_after": 1},
    {"workers": 2, "weights": ("bf16", "q4"), "gone": True},
    {"prefill": 1, "decode": 1},
    {"prefill": 1, "decode": 1, "budget": 0.0},
)


def test_the_page_lists_every_ending_of_a_flow_and_no_other():
    possible = set().union(*(endings_in(scene) for scene in SCENES))
    assert documented() == possible | NOT_OF_FLOWS


def test_an_answer_that_has_begun_ends_for_no_other_reason_than_the_table_says():
    failed = set().union(*(endings_in(scene) for scene in SCENES))
    reasons = {reason for outcome, reason in failed if outcome is Outcome.FAILED}
    assert reasons | {RejectReason.GATEWAY_STOPPED} == BREAKS_STREAMS


def documented():
    rows = re.findall(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \|", PAGE.read_text(), re.MULTILINE)
    reported = {(outcome, reason) for outcome, reasons in rows for reason in re.findall(r"\w+", reasons)}
    return {(outcome, reason) for outcome, reason in reported if reason in set(RejectReason)}


def endings_in(scene):
    """How a request can end there, whatever its workers, its limits and the time do."""
    ends, paths = set(), [()]
    while paths:
        path = paths.pop()
        step = play(path, **scene)
        if isinstance(step, Reject):
            failed = step.attempts or any(isinstance(it, Failed) and it.content_sent for it in path)
            ends.add((Outcome.FAILED if failed else Outcome.REJECTED, step.reason))
        elif step is not None and len(path) < DEEPEST:
            paths += [(*path, outcome) for outcome in outcomes_of(step, path)]
    return ends


def play(path, *, others_before=0, others_after=0, gone=False, model="m", limits=NO_LIMITS, **settings):
    """The step to which these outcomes lead; others come before the request, or when it has a worker, which
    may be gone then."""
    world = make_split_world(**settings) if "prefill" in settings else make_world(**settings)
    others = [others_flow(world) for _ in range(others_before)]
    flow = request_flow(make_request(model=model, limits=limits, splittable=True), world)
    step = next(flow)
    for outcome in path:
        try:
            step = flow.send(outcome)
        except StopIteration:
            return None
        if isinstance(step, Generate) and len(others) < others_after:
            others.append(others_flow(world))
        if isinstance(step, Generate) and gone:
            world.cluster.mark_down(step.worker.name, "gone")
    for it in (flow, *others):
        it.close()
    return step


def others_flow(world):
    flow = request_flow(make_request("other"), world)
    next(flow)
    flow.send(CacheMiss(0.0))
    return flow


def outcomes_of(step, path):
    at_s = SECONDS_PER_STEP * len(path)
    if isinstance(step, LookUpCache | ServeStored | FollowIdentical | LookAgain):
        return [*outcomes_of_the_cache(step, at_s)]
    if isinstance(step, CountAndLookUp):
        answers = [*(OverLimit(kind, 1.0) for kind in LimitKind), NotCounted(1.0)]
        return [(QuotaAnswered(at_s, answer), CacheMiss(at_s)) for answer in answers]
    if isinstance(step, Wait):
        return [Granted(at_s)] if step.ticket.granted else [TimedOut(at_s)]
    if isinstance(step, Prefill):
        kept = make_prefilled(step, at_s)
        return [Succeeded(at_s), kept, *(Failed(at_s, kind, content_sent=False) for kind in SPLIT_KINDS)]
    return [Succeeded(at_s), *failures(at_s, path, step)]


def outcomes_of_the_cache(step, at_s):
    if isinstance(step, LookUpCache | LookAgain):
        yield from (CacheMiss(at_s), IdenticalUnderWay(at_s))
    else:
        yield Succeeded(at_s)
    if isinstance(step, LookUpCache):
        yield CacheHit(at_s)
    if isinstance(step, FollowIdentical):
        yield from (LeaderLost(at_s), NotShareable(at_s), TimedOut(at_s))
        yield from (Failed(at_s, FailureKind.CLOSED, True, resumable) for resumable in (False, True))


def failures(at_s, path, step):
    broken = any(isinstance(it, Failed) and it.content_sent for it in path)
    if step.kv is not None:
        yield Failed(at_s, FailureKind.KV_TRANSFER, content_sent=False)
        yield Failed(at_s, FailureKind.TOO_LATE, content_sent=False)
    for kind in KINDS:
        if not broken:
            yield Failed(at_s, kind, content_sent=False)
        if broken or kind not in UNMET:
            yield Failed(at_s, kind, content_sent=True, resumable=True)
            yield Failed(at_s, kind, content_sent=True)

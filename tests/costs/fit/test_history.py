"""What each step carried is told from the record alone, as it truly was, or not at all."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.steps import EngineStep
from phasewise.costs.fit.observation import observed_steps
from phasewise.costs.fit.step import StepWork, chunk_pairs, decoding, prefilling
from phasewise.fake_engine.jitter import Jitter, JitteredCost
from phasewise.simulator.engine import EngineShape, VirtualEngine, VirtualRequest
from phasewise.simulator.requests import preset
from tests.builders import EPOCH_S, make_finished, make_step
from tests.fake_engine.engine_builders import make_request

ROOMY = EngineShape(
    max_model_len=256, max_num_seqs=8, max_num_batched_tokens=16, block_size=4, total_blocks=512
)
CROWDED = replace(ROOMY, max_model_len=64, total_blocks=16)
STEP_S = 0.05


def run(requests, shape=ROOMY, cost=lambda work: STEP_S, aborts=()):
    """The reports of an engine to which these come at their time, and which abandons some at theirs.

    `aborts` are pairs of a time and a request's id. An engine without work reports a step of nothing.
    """
    engine = VirtualEngine(shape, cost)
    coming, leaving = sorted(requests, key=lambda request: request.arrived_s), sorted(aborts)
    now, reports, steps = EPOCH_S, [], []
    while engine.has_work or coming:
        if not engine.has_work:
            now = max(now, EPOCH_S + coming[0].arrived_s)
        while coming and EPOCH_S + coming[0].arrived_s <= now:
            request = coming.pop(0)
            arrived = EPOCH_S + request.arrived_s
            engine.add(replace(request, arrived_s=arrived), arrived)
        while leaving and EPOCH_S + leaving[0][0] <= now:
            engine.abort(leaving.pop(0)[1])
        report = engine.step(now)
        if report is not None:
            reports.append(report)
            steps.append(report.step)
            now = report.step.ended_unix_s
        if not engine.has_work:
            steps.append(EngineStep(seq=0, ended_unix_s=now, running=0, waiting=0, kv_usage=0.0))
    return reports, [replace(step, seq=seq) for seq, step in enumerate(steps)]


def assert_told_truly(history, reports):
    """Every observation is that of the step that ended then; the others are counted."""
    true = {report.step.ended_unix_s: report for report in reports}
    for observation in history.observations:
        report = true[observation.at_s]
        assert observation.works == (report.work,)
        assert observation.seconds == pytest.approx(report.duration_s, rel=1e-3)
    assert len(history.observations) + history.unreported == len(reports)


def assert_all_told(requests, **options):
    reports, steps = run(requests, **options)
    history = observed_steps(steps)
    assert_told_truly(history, reports)
    assert history.unreported == 0
    return [observation.works[0] for observation in history.observations]


# --- what is told -----------------------------------------------------------------------------------------


def test_a_prompt_and_its_tokens_are_told():
    works = assert_all_told([make_request(prompt=10, max_tokens=3)])
    assert works == [prefilling(10), decoding([11]), decoding([12])]


def test_a_prompt_in_chunks_attends_to_the_chunks_before():
    works = assert_all_told([make_request(prompt=40, max_tokens=1)])
    assert works == [prefilling(16), prefilling(16, 16), prefilling(8, 32)]


def test_several_prompts_in_a_step_are_told_apart():
    works = assert_all_told(
        [make_request("a", 5, 1), make_request("b", 20, 1), make_request("c", 7, 1), make_request("d", 30, 1)]
    )
    assert works[0] == StepWork(
        prompt_tokens=16, requests=2, attention_token_pairs=chunk_pairs(5, 0) + chunk_pairs(11, 0)
    )
    assert works[1].attention_token_pairs == chunk_pairs(9, 11) + chunk_pairs(7, 0)


def test_streams_of_different_lengths_add_up_their_contexts():
    works = assert_all_told([make_request("a", 6, 4), make_request("b", 9, 4)])
    assert works[1:] == [decoding([7, 10]), decoding([8, 11]), decoding([9, 12])]


def test_a_cached_prefix_is_attended_to_but_not_computed():
    shared = tuple(range(500, 512))
    works = assert_all_told(
        [
            make_request("a", (*shared, 1, 2), 2),
            make_request("b", (*shared, 3, 4, 5), 2, arrived_s=1.0),
        ]
    )
    assert works[2] == prefilling(3, 12)


def test_a_prompt_is_told_beside_the_streams_it_slows_down():
    works = assert_all_told([make_request("a", 6, 6), make_request("b", 30, 2, arrived_s=STEP_S)])
    assert works[1] == StepWork(15, 1, 2, chunk_pairs(15, 0), 7)
    assert works[2] == StepWork(15, 1, 2, chunk_pairs(15, 15), 8)


def test_a_step_after_idleness_began_when_its_request_was_scheduled():
    _, steps = run([make_request("a", 6, 2), make_request("b", 7, 2, arrived_s=60.0)])
    durations_s = [observation.seconds for observation in observed_steps(steps).observations]
    assert durations_s == pytest.approx([STEP_S] * 4, rel=1e-3)


def test_ranks_are_told_each_for_itself():
    _, first = run([make_request("a", 10, 4)])
    _, second = run([make_request("b", 7, 4)])
    both = [
        replace(step, seq=2 * step.seq + rank, engine_index=rank)
        for rank, steps in enumerate((first, second))
        for step in steps
    ]
    history = observed_steps(both)
    works = [observation.works[0] for observation in history.observations]
    assert works[:4] == [prefilling(10), decoding([11]), decoding([12]), decoding([13])]
    assert works[4:] == [prefilling(7), decoding([8]), decoding([9]), decoding([10])]
    assert history.unreported == 0


def test_the_order_of_a_record_does_not_matter():
    _, steps = run([make_request("a", 20, 3), make_request("b", 9, 3, arrived_s=STEP_S)])
    assert observed_steps(steps[::-1]) == observed_steps(steps)


# --- what is not ------------------------------------------------------------------------------------------


def test_steps_with_a_request_that_never_finished_are_untold():
    reports, steps = run(
        [make_request("stays", 5, 9), make_request("goes", 6, 9, arrived_s=2 * STEP_S)],
        aborts=[(4 * STEP_S, "goes")],
    )
    history = observed_steps(steps)
    assert_told_truly(history, reports)
    carried = [report for report in reports if "goes" in {token.request_id for token in report.emitted}]
    assert 0 < len(carried) == history.unreported


def test_steps_with_a_preempted_request_are_untold_and_the_others_told():
    reports, steps = run(
        [make_request("a", 24, 20), make_request("b", 23, 20), make_request("late", 9, 3, arrived_s=100.0)],
        shape=CROWDED,
    )
    assert any(report.step.preempted for report in reports)
    history = observed_steps(steps)
    assert_told_truly(history, reports)
    late = [each for each in history.observations if each.at_s > EPOCH_S + 100.0]
    assert len(late) == 3
    assert history.unreported > 0


@pytest.mark.parametrize("step_s", [0.002, 0.05])
def test_steps_that_give_several_tokens_at_once_are_untold(step_s):
    """Six tokens in four steps: as many as the engine says it verified, not one each."""
    speculated = make_finished(
        prompt_tokens=10, output_tokens=6, prefill_s=step_s, decode_s=3 * step_s, e2e_s=4 * step_s
    )
    steps = [
        make_step(0, 1 * step_s, prompt=5, decode=0, prompt_requests=1, decode_requests=0),
        make_step(1, 2 * step_s, decode=1, decode_requests=1),
        make_step(2, 3 * step_s, decode=1, decode_requests=1, running=0),
        make_step(3, 9.0, prompt=10, decode=0, prompt_requests=1, decode_requests=0),
        make_step(4, 9.0 + step_s, decode=3, decode_requests=1),
        make_step(5, 9.0 + 2 * step_s, decode=3, decode_requests=1),
        make_step(6, 9.0 + 3 * step_s, decode=1, running=0, decode_requests=1, finished=[speculated]),
    ]
    history = observed_steps(steps)
    assert history.observations == ()
    assert history.unreported == 7


def test_a_stream_that_gained_two_tokens_at_once_is_not_taken_for_one_that_began_a_step_earlier():
    """Short steps: the first token is no further from the step before than the clocks are from each other.

    In that step a request decoded that never finished, so the count of streams would not give it away.
    """
    step_s = 0.004
    ended = make_finished(prompt_tokens=10, output_tokens=4, prefill_s=step_s, decode_s=2 * step_s)
    steps = [
        make_step(0, 1 * step_s, prompt=8, decode=0, prompt_requests=1, decode_requests=0),
        make_step(1, 2 * step_s, prompt=10, decode=1, prompt_requests=1, decode_requests=1),
        make_step(2, 3 * step_s, decode=1, decode_requests=1),
        make_step(3, 4 * step_s, decode=1, running=0, decode_requests=1, finished=[ended]),
    ]
    assert observed_steps(steps).observations == ()


def test_a_prompt_of_which_the_record_missed_the_first_chunk_is_untold():
    """Its later chunks would be taken for earlier ones; the prompt behind it would hide the difference."""
    reports, steps = run(
        [make_request("a", 50, 1), make_request("b", 45, 1), make_request("c", 4, 2, arrived_s=9.0)]
    )
    history = observed_steps(steps[1:])
    assert_told_truly(history, reports[1:])
    assert [each.works[0] for each in history.observations] == [prefilling(4), decoding([5])]


def test_a_record_with_a_gap_is_not_counted_back_across_it():
    reports, steps = run([make_request("a", 6, 8), make_request("b", 7, 3, arrived_s=9.0)])
    history = observed_steps(steps[:3] + steps[4:])
    assert_told_truly(history, reports[:3] + reports[4:])
    assert len(history.observations) == 3


def test_a_request_that_ended_without_a_token_or_without_times_tells_nothing():
    counts = {"prompt": 10, "decode": 0, "prompt_requests": 1, "decode_requests": 0, "running": 0}
    nothing = make_finished(prompt_tokens=10, output_tokens=0, reason="abort")
    unreached = make_finished(prompt_tokens=10, output_tokens=1, decode_s=float("nan"))
    for ended in (nothing, unreached):
        history = observed_steps([make_step(0, 1.0, finished=[ended], **counts)])
        assert (history.observations, history.unreported) == ((), 1)


def test_steps_without_counts_are_no_steps():
    step = EngineStep(seq=0, ended_unix_s=EPOCH_S, running=0, waiting=0, kv_usage=0.0)
    assert observed_steps([step]).unreported == 0
    assert observed_steps([]).observations == ()


# --- any load ---------------------------------------------------------------------------------------------

PREFIXES = (tuple(range(700, 712)), tuple(range(800, 824)))


@st.composite
def loads(draw):
    """Requests that come at any time, some with a prefix in common, and some abandoned on the way."""
    requests, aborts = [], []
    for number in range(draw(st.integers(1, 12))):
        prefix = draw(st.sampled_from(((), *PREFIXES)))
        own = draw(st.integers(1, 39))
        ids = prefix + tuple(range(1000 * (number + 1), 1000 * (number + 1) + own))
        arrived_s = draw(st.integers(0, 80)) * 0.0371
        request = VirtualRequest(f"r{number}", ids, draw(st.integers(1, 12)), arrived_s, ignore_eos=True)
        requests.append(replace(request, client_id=draw(st.sampled_from((None, "same")))))
        if draw(st.integers(0, 4)) == 0:
            aborts.append((arrived_s + draw(st.integers(0, 20)) * 0.0371, request.request_id))
    return requests, aborts


@settings(max_examples=150, deadline=None)
@given(loads(), st.sampled_from((ROOMY, CROWDED)), st.integers(0, 2**32), st.data())
def test_every_told_work_is_the_true_one(load, shape, seed, data):
    requests, aborts = load
    cost = JitteredCost(preset("cpu-demo"), Jitter(spread=0.2), Random(seed))  # noqa: S311 - no secret
    reports, steps = run(requests, shape, cost, aborts)
    history = observed_steps(steps)
    assert_told_truly(history, reports)
    if not aborts and not any(report.step.preempted for report in reports):
        assert history.unreported == 0

    # Whatever is missing of the record, what is told of the rest is true.
    missing = data.draw(st.sets(st.integers(0, len(steps) - 1), max_size=3))
    kept = [step for step in steps if step.seq not in missing]
    ends_s = {step.ended_unix_s for step in kept if step.prompt_tokens is not None}
    assert_told_truly(
        observed_steps(kept), [report for report in reports if report.step.ended_unix_s in ends_s]
    )

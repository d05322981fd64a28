"""A request's time in one sentence, and as a ledger that adds up."""

import pytest

from phasewise.core.timeline import AttemptKind, GatewayTimes, Outcome, Part, Source
from phasewise.diagnosis.analysis.request_life import life_of
from phasewise.report.request.text import about, workers
from phasewise.report.request.words import ledger_of, where_the_time_went
from tests.builders import make_attempt, make_finished, make_span, make_step, make_timeline
from tests.diagnosis.analysis.test_request_life import OWN, STEPS, life


def test_the_sentence_names_the_step_of_others_and_the_request_in_it():
    assert where_the_time_went(life()) == (
        "TTFT 8.90 s: 8.70 s waiting for a step that read another request's 6,100-token prompt, "
        "then 100 ms own prefill of 100 tokens. Streaming took 400 ms for 5 tokens, 100 ms each."
    )


def test_the_ledger_adds_up_and_has_no_empty_rows():
    found = ledger_of(life())
    assert sum(row.seconds for row in found.start) == pytest.approx(found.start_s)
    assert sum(row.seconds for row in found.stream) == pytest.approx(found.stream_s)
    assert found.whole_s == pytest.approx(9.3)
    rows = {row.name: row.seconds for row in found.start}
    assert rows["waiting for running step"] == pytest.approx(8.7)
    assert all(row.seconds for row in (*found.start, *found.stream))


def test_a_chunk_of_a_longer_prompt_is_named_as_a_part_of_it():
    """2,000 of 6,100 tokens: the rest of that prompt was read before."""
    steps = [STEPS[0], make_step(2, 8.7, prompt=2000, decode=0, running=2), *STEPS[2:]]
    assert "read 2,000 tokens of another request's 6,100-token prompt" in where_the_time_went(life(steps))


def test_prompts_of_requests_that_have_not_ended_are_counted():
    steps = [*STEPS[:-1], make_step(7, 9.3, decode=2, finished=[OWN])]
    assert "waiting for a step that read 6,100 prompt tokens of other requests" in where_the_time_went(
        life(steps)
    )


def test_the_queue_says_what_was_read_meanwhile():
    own = make_finished(output_tokens=5, queue_s=8.5, prefill_s=0.2, decode_s=0.4, e2e_s=9.2)
    steps = [*STEPS[:-1], make_step(7, 9.3, decode=2, finished=[own])]
    assert "8.50 s in the engine's queue while 1 step read 6,100 prompt tokens" in where_the_time_went(
        life(steps)
    )


def test_a_stall_is_named_with_its_step():
    own = make_finished(output_tokens=6, prefill_s=0.1, decode_s=5.4, e2e_s=5.5)
    other = make_finished("chatcmpl-late", prompt_tokens=3000, prefill_s=5.0, decode_s=0.1, e2e_s=5.1)
    steps = [
        make_step(1, 0.1, prompt=100, decode=0),
        *(make_step(seq, seq / 10, decode=1) for seq in (2, 3, 4)),
        make_step(5, 5.4, prompt=3000, decode=1, running=2),
        make_step(6, 5.5, decode=2, finished=[own, other], running=0),
    ]
    reported = where_the_time_went(life(steps, (0.1, 0.2, 0.3, 0.4, 5.4, 5.5)))
    assert "its longest stall, 5.00 s, was a step that read another request's 3,000-token prompt" in reported


def test_a_plain_reply_has_its_decode_in_the_ledger():
    spans = (make_span(Part.PREFILL, 0.2), make_span(Part.DECODE, 0.7))
    plain = make_timeline((), engine_spans=spans, streamed=False, ended_s=1.0, output_tokens=7)
    found = life_of(plain, {})
    assert where_the_time_went(found) == (
        "Answered in one piece after 1.00 s: 200 ms prefill (own and others', not separable), "
        "then 700 ms decode of 7 tokens, then 100 ms unexplained."
    )
    ledger = ledger_of(found)
    assert [row.name for row in ledger.start][-2:] == ["decode", "unexplained"]
    assert sum(row.seconds for row in ledger.start) == pytest.approx(1.0)


def test_a_request_without_an_answer_says_how_it_ended_and_where_it_waited():
    wait = make_span(Part.GATEWAY_WAIT, 2.9, Source.GATEWAY_CLOCK)
    rejected = make_timeline(
        (), spans=(wait,), attempts=(), outcome=Outcome.REJECTED, reason="queue_timeout", ended_s=3.0
    )
    assert where_the_time_went(life_of(rejected, {})) == (
        "The request was rejected (queue timeout) without an answer after 3.00 s: 2.90 s in the gateway. "
        "The gateway rejected it: no engine had a free slot in time; raise max_wait_s in "
        "gateway.slo_classes, or slots of engines that can take more; or add an engine."
    )


def test_the_gateways_time_is_split_into_its_stages_which_add_up():
    wait = make_span(Part.GATEWAY_WAIT, 2.0, Source.GATEWAY_CLOCK)
    times = GatewayTimes(limits_s=0.1, reading_s=1.5, parsing_s=0.2)
    found = life_of(make_timeline((2.5, 2.6), spans=(wait,), in_gateway=times), {})
    rows = {row.name: row.seconds for row in ledger_of(found).start if row.name.startswith("gateway")}
    assert rows == pytest.approx(
        {
            "gateway: limits": 0.1,
            "gateway: reading": 1.5,
            "gateway: parsing": 0.2,
            "gateway: placing, connecting": 0.2,
        }
    )
    assert sum(row.seconds for row in ledger_of(found).start) == pytest.approx(2.5)
    assert "2.00 s in the gateway (reading its body 1.50 s)" in where_the_time_went(found)
    more = GatewayTimes(reading_s=1.5, queue_s=1.5)
    ledger = ledger_of(life_of(make_timeline((2.5, 2.6), spans=(wait,), in_gateway=more), {}))
    assert sum(row.seconds for row in ledger.start) == pytest.approx(2.5)


def test_a_prompt_is_never_given_a_length_that_nobody_counted():
    own = make_attempt([make_span(Part.PREFILL, 0.5, Source.STEP_RECORD)], outcome=Outcome.CANCELLED)
    fields = {"attempts": (own,), "outcome": Outcome.CANCELLED, "ended_s": 2.0, "prompt_tokens": None}
    begun = where_the_time_went(life_of(make_timeline((0.5, 0.6), **fields), {}))
    assert "500 ms own prefill of a prompt of unknown length" in begun
    assert "500 ms own prefill, not finished" in where_the_time_went(life_of(make_timeline((), **fields), {}))


def test_a_stream_that_was_cancelled_says_when():
    cut = make_timeline(
        (0.5, 0.6),
        outcome=Outcome.CANCELLED,
        ended_s=2.0,
        attempts=(make_attempt(outcome=Outcome.CANCELLED),),
    )
    assert "The stream was cancelled 1.50 s later, after 2 chunks." in where_the_time_went(life_of(cut, {}))


def failed_over(*attempts, content_times_s=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), **fields):
    return life_of(make_timeline(content_times_s, attempts=attempts, **fields), {})


DIED = make_attempt(outcome=Outcome.FAILED, worker="a", ended_s=0.65, note="connection reset")


def test_an_engine_that_died_stands_first_with_what_it_cost():
    resumed = make_attempt(worker="b", kind=AttemptKind.RESUMED, started_s=0.66, ended_s=1.0)
    life = failed_over(DIED, resumed, content_times_s=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.9, 1.0))
    assert where_the_time_went(life).startswith(
        "a failed after 650 ms (connection reset), and b went on after a gap of 300 ms. TTFT 100 ms"
    )
    assert workers(life.timeline) == "a>b"


def test_an_engine_that_hung_stands_first_and_the_one_that_answered_after_it():
    hung = make_attempt(
        outcome=Outcome.TIMED_OUT, worker="a", ended_s=61.0, note="the worker made no progress"
    )
    life = failed_over(
        hung, make_attempt(worker="b", started_s=61.0, ended_s=62.0), content_times_s=(61.5, 62.0)
    )
    assert where_the_time_went(life).startswith(
        "a timed out after 61.0 s (the worker made no progress), and b got the request. TTFT 61.5 s"
    )


def test_the_wait_for_a_worker_is_the_gateways():
    life = failed_over(DIED, outcome=Outcome.FAILED, ended_s=10.65)
    said = where_the_time_went(life)
    assert said.startswith("a failed after 650 ms (connection reset), the gateway waited 10.0 s for a worker")
    assert "longest stall, 10.1 s, was the gateway's wait for another worker" in said
    found = ledger_of(life)
    rows = {row.name: row.seconds for row in found.stream}
    assert rows["gateway, waiting for a worker"] == pytest.approx(10.0)
    assert sum(rows.values()) == pytest.approx(found.stream_s)


def test_a_stall_in_which_an_engine_failed_and_another_was_at_hand_is_the_failure():
    resumed = make_attempt(worker="b", kind=AttemptKind.RESUMED, started_s=0.66, ended_s=2.0)
    life = failed_over(DIED, resumed, content_times_s=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1.9, 2.0))
    assert "longest stall, 1.30 s, was the failure of its engine" in where_the_time_went(life)


def test_a_request_that_named_no_model_says_so():
    rejected = make_timeline(model="", outcome=Outcome.REJECTED, attempts=())
    assert ", no known model; rejected" in about(rejected)

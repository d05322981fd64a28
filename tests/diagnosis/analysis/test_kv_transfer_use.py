"""KV that was not transferred is found by counters, and blamed for the second prefill alone."""

from dataclasses import replace

import pytest

from phasewise.core.timeline import AttemptKind, Outcome, Part, Source, Span
from phasewise.core.worker import WorkerRef
from phasewise.diagnosis.analysis.engine_load import EngineSurroundings
from phasewise.diagnosis.analysis.kv_transfer_use import kv_transfer_use
from phasewise.diagnosis.finding import Cause
from phasewise.diagnosis.rules.find import explain
from tests.builders import EPOCH_S, make_attempt, make_timeline
from tests.diagnosis.summaries import SLO, make_start, make_summary

PREFILL, DECODE = WorkerRef("p-0", "1"), WorkerRef("d-0", "1")


def transferred(again_s=0.05, **fields):
    """A request on two engines; the second says how long its own prefill took."""
    spans = (Span(Part.PREFILL, Source.ENGINE_REPORT, again_s),)
    attempts = (
        replace(make_attempt(), kind=AttemptKind.PREFILL_SIDE, worker=PREFILL),
        replace(make_attempt(spans), kind=AttemptKind.DECODE_SIDE, worker=DECODE),
    )
    return make_timeline(attempts=attempts, prompt_tokens=1_000, **fields)


def whole(cached_tokens):
    return make_timeline(attempts=(replace(make_attempt(), worker=DECODE),), cached_tokens=cached_tokens)


def engine(fetched, hits=0.0):
    return EngineSurroundings("d-0", 1, fetched_tokens=fetched, own_hit_tokens=hits)


def test_kv_that_came_is_no_finding():
    use = kv_transfer_use([transferred()] * 3, [engine(3_000.0)], EPOCH_S)
    assert use.engines == ()
    assert use.recomputed_tokens == 0


def test_kv_that_did_not_come_names_the_engine_and_what_computing_again_took():
    use = kv_transfer_use([transferred(again_s=0.8)] * 3, [engine(0.0)], EPOCH_S)
    assert use.engines == ("d-0",)
    assert use.recomputed_tokens == 3_000
    assert use.again_s == pytest.approx(2.4)


def test_what_the_decode_engine_had_itself_need_not_come():
    assert kv_transfer_use([transferred()], [engine(100.0, hits=900.0)], EPOCH_S).engines == ()


def test_hits_of_requests_that_were_served_whole_excuse_nothing():
    use = kv_transfer_use([transferred(), whole(900)], [engine(100.0, hits=900.0)], EPOCH_S)
    assert use.engines == ("d-0",)


def test_requests_that_fetched_before_the_window_are_not_held_against_its_counters():
    assert kv_transfer_use([transferred()], [engine(0.0)], EPOCH_S + 60) is None


@pytest.mark.parametrize("seen", [[whole(0)], []])
def test_without_kv_transfers_there_is_nothing_to_say(seen):
    assert kv_transfer_use(seen, [engine(0.0)], EPOCH_S) is None


def test_an_engine_that_does_not_count_sources_is_not_judged():
    assert kv_transfer_use([transferred()], [EngineSurroundings("d-0", 1)], EPOCH_S) is None


def test_a_failed_kv_transfer_is_not_counted():
    failed = transferred()
    decode = replace(failed.attempts[1], outcome=Outcome.FAILED)
    assert (
        kv_transfer_use([replace(failed, attempts=(failed.attempts[0], decode))], [engine(0.0)], EPOCH_S)
        is None
    )


def test_the_second_prefill_is_claimed_and_the_first_left_to_the_prompt():
    start = make_start(prefill_s=2.4)
    use = kv_transfer_use([transferred(again_s=1.2)] * start.requests, [engine(0.0)], EPOCH_S)
    found = explain(replace(make_summary(start), kv_transfer=use), SLO).findings
    shares = {it.cause: it.share for it in found}
    assert shares[Cause.KV_NOT_TRANSFERRED] == pytest.approx(0.5)
    assert Cause.KV_NOT_TRANSFERRED not in {it.cause for it in explain(make_summary(start), SLO).findings}

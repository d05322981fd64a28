"""What a window does not show is listed, with its extent."""

from dataclasses import replace

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.diagnosis.observed.not_observed import not_observed
from phasewise.diagnosis.observed.observation import EngineSeen, Observed, TargetKind, WatchedEngine
from tests.builders import make_timeline


def make_seen(name="w0", *, recorded=True):
    engine = WatchedEngine(name, "http://127.0.0.1:1", None)
    return EngineSeen(
        engine, None, (), details=True, dropped=0, loads=(), round_trip_s=None, recorded=recorded
    )


def notes(seen=(), timelines=()):
    observed = Observed("http://127.0.0.1:1", TargetKind.GATEWAY, 0.0, 20.0, tuple(seen))
    return not_observed(observed, timelines, {}, ())


def of_recorders(seen):
    return [note for note in notes(seen) if "no step recorder answers" in note]


def test_engines_without_a_recorder_are_counted_beside_those_that_have_one():
    one, other = make_seen("w0"), make_seen("w1", recorded=False)
    (note,) = of_recorders([one, other])
    assert "in 1 of 2 engines: no step recorder" in note
    (note,) = of_recorders([other])
    assert "engines:" not in note


def test_an_idle_engine_with_a_recorder_does_not_lack_one():
    assert of_recorders([make_seen()]) == []


def test_plain_replies_and_several_answers_are_counted_because_their_tokens_have_no_times():
    usual = make_timeline()
    plain, several = replace(usual, content_times_s=(), streamed=False), replace(usual, choices=2)
    said = notes(timelines=[usual, plain, several, several])
    assert "the TTFT of 1 of 4 requests: their replies were not streamed" in said
    assert any(note.startswith("the time per token of 2 of 4 requests") for note in said)
    assert not any("of 1 requests" in note for note in notes(timelines=[usual]))


def test_what_the_cache_answered_is_counted_and_taken_for_no_engines_work():
    plain = make_timeline((), streamed=False)
    cached = make_timeline((), streamed=False, attempts=(), cache=CacheNote(CacheResult.HIT_EXACT))
    said = notes(timelines=[plain, cached, cached])
    assert "2 requests that the answer cache served: only engines are diagnosed" in said
    assert "the TTFT of 1 of 1 requests: their replies were not streamed" in said
    assert not any("--enable-per-request-metrics" in note for note in notes(timelines=[cached]))

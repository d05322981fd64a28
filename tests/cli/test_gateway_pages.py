"""A window that has passed is judged with what was known at its end."""

from phasewise.cli.gateway_pages import seen_at
from phasewise.core.timeline import Outcome, Part
from tests.builders import EPOCH_S, make_attempt, make_span, make_timeline


def test_a_request_is_seen_as_it_was_at_a_moment():
    spans = (make_span(Part.PREFILL), make_span(Part.DECODE))
    whole = make_timeline((0.5, 0.6, 2.0), attempts=(make_attempt(spans, ended_s=2.0),))
    assert seen_at(whole, EPOCH_S + 3.0) is whole
    then = seen_at(whole, EPOCH_S + 1.0)
    assert (then.outcome, then.ended_s, then.content_times_s) == (Outcome.UNFINISHED, 1.0, (0.5, 0.6))
    assert [it.part for it in then.attempts[0].spans] == [Part.PREFILL]
    before = seen_at(whole, EPOCH_S + 0.1)
    assert (before.content_times_s, before.attempts[0].spans) == ((), ())

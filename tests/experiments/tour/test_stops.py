"""Predictions of the tour are held against what came, and what did not come is said."""

from random import Random

import pytest

from phasewise.experiments.tour.stops import (
    BATCH,
    FIRST,
    GAP,
    STOPS,
    STREAMS,
    THROUGHPUT,
    TPOT,
    TTFT,
    Played,
    Sizes,
    figures,
    outcomes,
    under_way_s,
)
from phasewise.report.tour.page import CARDS, render_tour
from phasewise.report.tour.text import in_words, range_in_words
from tests.builders import EPOCH_S, make_timeline


def request(ttft_s, tpot_s=0.02, tokens=16, *, sent_s=0.0, prompt=192):
    times = tuple(ttft_s + tpot_s * place for place in range(tokens))
    return make_timeline(times, started_unix_s=EPOCH_S + sent_s, prompt_tokens=prompt)


def played(stop, *timelines):
    return Played(stop, timelines)


ALONE = played(FIRST, *(request(0.5, sent_s=2.0 * place) for place in range(3)))
LONG = played(STOPS[0], *(request(2.0, sent_s=4.0 * place, prompt=768) for place in range(3)))


def by_figure(*others):
    return {it.prediction.figure: it for it in outcomes(ALONE, others)[-1][1]}


def test_a_prompt_four_times_as_long_takes_four_times_as_long_to_start():
    found = by_figure(LONG)
    assert found[TTFT].ratio == pytest.approx(4.0)
    assert found[TTFT].held
    assert found[TPOT].held


def test_a_prediction_that_fails_says_what_may_explain_it():
    found = by_figure(played(STOPS[0], request(0.55, prompt=768)))
    assert not found[TTFT].held
    assert "lower than predicted, perhaps because a part of TTFT is the same" in in_words(found[TTFT])
    found = by_figure(played(STOPS[0], request(5.0, prompt=768)))
    assert "higher than predicted, perhaps because attention grows" in in_words(found[TTFT])


def test_streams_at_once_are_counted_by_their_tokens_per_second():
    at_once = played(STOPS[2], *(request(0.6, 0.03, prompt=16) for _ in range(BATCH)))
    found = by_figure(at_once)
    assert found[THROUGHPUT].ratio == pytest.approx(8 * 0.02 / 0.03, rel=0.1)
    assert found[TPOT].ratio == pytest.approx(1.5)


def test_the_second_of_two_equal_prompts_is_held_against_the_first():
    again = played(STOPS[3], request(2.0, prompt=768), request(0.1, sent_s=3.0, prompt=768))
    found = by_figure(again)[TTFT]
    assert found.ratio == pytest.approx(0.05)
    assert in_words(found) == "TTFT 2.00 s (the first time) -> 100 ms, 20 times less: as predicted"


def test_a_long_prompt_amid_streams_is_held_against_itself_alone_and_gaps_against_a_usual_token():
    stalled = make_timeline((0.5, 0.52, 0.54, 2.9, 2.92), prompt_tokens=192)
    newcomer = request(2.4, sent_s=1.0, prompt=768)
    found = by_figure(LONG, played(STOPS[4], *([stalled] * STREAMS), newcomer))
    assert found[GAP].ratio == pytest.approx(2.36 / 0.02)
    assert found[TTFT].ratio == pytest.approx(1.2)


@pytest.mark.parametrize("streams", [(1.5, 1.52, 1.54), (0.1, 0.12, 0.14)], ids=["not begun", "ended"])
def test_a_stream_that_was_not_under_way_when_the_long_prompt_came_shows_no_gap(streams):
    stream = make_timeline(streams, prompt_tokens=16)
    found = by_figure(LONG, played(STOPS[4], *([stream] * STREAMS), request(2.4, sent_s=1.0, prompt=768)))
    assert found[GAP].held is None


def test_the_long_prompt_comes_when_all_streams_are_under_way():
    eight = [request(0.5 + 0.1 * place, 0.05) for place in range(BATCH)]
    assert under_way_s(eight) == pytest.approx(1.2 + 3 * 0.05)
    plan = STOPS[4].plan(Sizes(late_s=under_way_s(eight)), Random(1))  # noqa: S311 - words, not secrets
    assert [it.at_s for it in plan.requests] == pytest.approx([0, 0, 0, 0, 1.35])


def test_what_nobody_answered_is_not_measured():
    found = by_figure(played(STOPS[0], make_timeline(())))
    assert found[TTFT].held is None
    assert in_words(found[TTFT]) == "TTFT: not measured"
    assert figures([]) == {}


@pytest.mark.parametrize("stop", [FIRST, *STOPS], ids=lambda it: it.title)
def test_every_stop_has_requests_that_fit(stop):
    plan = stop.plan(Sizes(prompt=48), Random(1))  # noqa: S311 - words, not secrets
    assert 2 <= len(plan.requests) <= BATCH


def test_ranges_are_said_as_people_say_them():
    said = {range_in_words(it) for stop in STOPS for it in stop.predictions}
    assert {"about the same (0.75x to 1.35x)", "at most 0.5x", "over 4.0x"} <= said


def test_the_page_has_every_stop_its_requests_and_the_four_cards():
    page = render_tour(ALONE, outcomes(ALONE, (LONG,)), "http://127.0.0.1:1", "phasewise levers --tour")
    assert "2 of 2 predictions held" in page
    assert LONG.stop.title in page
    assert all(card[0] in page for card in CARDS)
    assert "http://127.0.0.1:1" in page

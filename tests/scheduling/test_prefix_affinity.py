"""Conversations stay where their KV is, for as long as that is the shorter way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.decision import KEPT_CANDIDATES, Candidate
from phasewise.scheduling.policies import home_of, least_outstanding, prefix_affinity
from phasewise.scheduling.prefix_index import PrefixIndex
from tests.builders import make_request, make_worker

WORKERS = [make_worker(f"w{index}") for index in range(3)]
HASHES = tuple(range(1, 11))


def make_candidates(*outstanding_tokens):
    return [
        Candidate(worker, tokens, tokens // 100)
        for worker, tokens in zip(WORKERS, outstanding_tokens, strict=False)
    ]


def make_conversation(hashes=HASHES):
    return make_request(prompt_bytes=5_376, prefix_hashes=hashes)


def index_with(*served):
    """Each of them a worker's place in the list, and the hashes it has served."""
    index = PrefixIndex()
    for place, hashes in served:
        index.served(WORKERS[place].ref, hashes, 1_344, 0)
    return index


def chosen(index, request, *outstanding_tokens):
    return prefix_affinity(index)(request, make_candidates(*outstanding_tokens)).chosen.name


def test_a_conversation_goes_on_where_it_was_served():
    assert chosen(index_with((1, HASHES)), make_conversation(), 0, 0, 0) == "w1"


def test_a_longer_common_beginning_wins():
    index = index_with((0, HASHES[:3]), (2, HASHES[:7]))
    assert chosen(index, make_conversation(), 0, 0, 0) == "w2"


def test_it_stays_while_the_work_there_is_less_than_what_it_saves():
    index = index_with((1, HASHES))
    assert chosen(index, make_conversation(), 0, 1_200, 0) == "w1"
    assert chosen(index, make_conversation(), 0, 1_400, 0) == "w0"


def test_a_new_conversation_goes_to_the_idle_worker_that_was_given_least():
    index = index_with((0, HASHES), (1, (100, 101)), (2, (200, 201, 202)))
    assert chosen(index, make_conversation((900, 901)), 0, 0, 0) == "w1"


def test_new_conversations_one_at_a_time_are_spread_over_all_workers():
    index, places = PrefixIndex(), []
    for number in range(9):
        hashes = tuple(range(1_000 * number, 1_000 * number + 5))
        decision = prefix_affinity(index)(make_conversation(hashes), make_candidates(0, 0, 0))
        index.served(decision.chosen.ref, hashes, 640, 0)
        places.append(decision.chosen.name)
    assert [places.count(worker.name) for worker in WORKERS] == [3, 3, 3]


def test_new_conversations_are_spread_over_more_workers_than_a_decision_keeps():
    index, workers = PrefixIndex(), [make_worker(f"w{place}") for place in range(2 * KEPT_CANDIDATES)]
    idle, places = [Candidate(worker, 0, 0) for worker in workers], set()
    for number in range(len(workers)):
        hashes = tuple(range(1_000 * number, 1_000 * number + 5))
        decision = prefix_affinity(index)(make_conversation(hashes), idle)
        assert len(decision.candidates) == KEPT_CANDIDATES
        index.served(decision.chosen.ref, hashes, 640, 0)
        places.add(decision.chosen.name)
    assert len(places) == len(workers)


def test_the_reason_says_what_was_expected():
    decision = prefix_affinity(index_with((1, HASHES)))(make_conversation(), make_candidates(0, 40, 0))
    assert decision.reason == "1280 of about 1344 prompt tokens expected in its cache, 40 tokens under way"


@given(loads=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_without_anything_remembered_it_places_as_least_outstanding_does(loads):
    candidates = [Candidate(make_worker(f"w{place}"), *load) for place, load in enumerate(loads)]
    index = PrefixIndex()
    for request in (make_request(), make_conversation()):
        assert (
            prefix_affinity(index)(request, candidates).candidates
            == least_outstanding(request, candidates).candidates
        )


@given(
    loads=st.lists(st.integers(0, 3_000), min_size=3, max_size=3),
    held=st.lists(st.integers(0, 10), min_size=3, max_size=3),
)
def test_no_worker_would_have_less_to_compute_than_the_chosen_one(loads, held):
    index = index_with(*((place, HASHES[:depth]) for place, depth in enumerate(held)))
    request = make_conversation()
    left = {
        worker.name: tokens - index.cached_tokens(worker.ref, HASHES, request.estimated_prompt_tokens)
        for worker, tokens in zip(WORKERS, loads, strict=True)
    }
    assert left[chosen(index, request, *loads)] == min(left.values())


# --- Several gateways: each has seen other turns, and all find the same home.


def test_gateways_that_know_nothing_of_a_conversation_send_it_to_the_same_worker():
    numbered = [
        make_request(prompt_bytes=5_376, prefix_hashes=HASHES, conversation=it) for it in range(1, 60)
    ]
    homes = [chosen(PrefixIndex(), request, 0, 0, 0) for request in numbered]
    assert homes == [chosen(index_with((0, (77,))), request, 0, 0, 0) for request in numbered]
    assert {homes.count(worker.name) for worker in WORKERS} <= set(range(10, 31))


def test_a_home_with_a_whole_prompt_more_to_compute_is_left():
    request = make_request(prompt_bytes=5_376, prefix_hashes=HASHES, conversation=1)
    home = WORKERS.index(next(it for it in WORKERS if it.ref == home_of(1, make_candidates(0, 0, 0))))
    busy = [0, 0, 0]
    busy[home] = 1_300
    assert chosen(PrefixIndex(), request, *busy) == WORKERS[home].name
    busy[home] = 1_400
    assert chosen(PrefixIndex(), request, *busy) != WORKERS[home].name


def test_a_worker_that_goes_moves_its_own_conversations_alone():
    all_three = make_candidates(0, 0, 0)
    for conversation in range(1, 60):
        home = home_of(conversation, all_three)
        left = [it for it in all_three if it.worker is not WORKERS[1]]
        assert home == WORKERS[1].ref or home_of(conversation, left) == home

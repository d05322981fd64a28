"""When a request is disaggregated, on which workers, and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.core.decision import KEPT_OPTIONS, Candidate
from phasewise.core.kv_transfer import SplitRule
from phasewise.core.worker import Role
from phasewise.scheduling.disaggregation import SplitPolicy
from phasewise.scheduling.engine_speed import EngineSpeeds
from phasewise.scheduling.policies import least_outstanding
from phasewise.scheduling.prefix_index import PrefixIndex
from tests.builders import make_request, make_worker

PREFILL = [make_worker(f"p{index}", role=Role.PREFILL, pool="prefill") for index in range(2)]
DECODE = [make_worker(f"d{index}", role=Role.DECODE, pool="decode") for index in range(2)]
MIXED = make_worker("m0", pool="mixed")
WORKERS = [*PREFILL, *DECODE, MIXED]
P0, P1, D0, D1 = *PREFILL, *DECODE

LONG = make_request(prompt_bytes=24_000, max_output_tokens=100, splittable=True)
SHORT = make_request(prompt_bytes=120, max_output_tokens=100, splittable=True)


class CachedAt(PrefixIndex):
    """Says of some workers that they hold so much of every prompt."""

    def __init__(self, **tokens):
        self._tokens = tokens

    def cached_on(self, hashes, prompt_tokens):
        return {worker.ref: self._tokens.get(worker.name, 0) for worker in WORKERS}


def make_paces(*, fetch_s_per_token=5e-6, slow=None, prefill_reads=0.5, fetches=True):
    """Everybody reads 1,000 tokens a second, writes one per 60 ms and fetches in no time worth the name.

    Prefill workers were lately given prompts for half of their time.
    """
    book = EngineSpeeds(WORKERS)
    for worker in WORKERS:
        factor = 5.0 if worker is slow else 1.0
        for tokens in (50, 400, 2_000, 6_000) * 2:
            book.learn_read(worker.ref, tokens, 0, (0.001 * tokens) * factor)
            if fetches:
                book.learn_fetch(worker.ref, tokens, 0.01 + fetch_s_per_token * tokens)
        for streams in (1, 2, 4, 8) * 2:
            book.learn_step(worker.ref, streams, 0.06 + 0.001 * streams)
    for worker in PREFILL:
        book.reading.placed(worker.ref, 120.0 * prefill_reads, 0.0)
    return book


def make_policy(rule=SplitRule.AUTO, *, paces=None, prefixes=None, threshold_tokens=512):
    paces, prefixes = paces or make_paces(), prefixes or PrefixIndex()
    return SplitPolicy(rule, threshold_tokens, least_outstanding, paces, prefixes)


def idle(*workers):
    return [Candidate(worker, 0, 0) for worker in workers]


def busy(worker, *, streams=0, unread=0, read_elsewhere=0):
    """Streams of 100 tokens each, unread prompts of 1,000 tokens each, and slots held for others."""
    requests, tokens = streams + unread + read_elsewhere, 100 * (streams + read_elsewhere) + 1_000 * unread
    return Candidate(worker, tokens, requests, 1_000 * unread, streams, unread)


def all_pairs(_prefill, _decode):
    return True


def decide(request, candidates, can_transfer=all_pairs, **policy):
    return make_policy(**policy)(request, candidates, can_transfer)


def names(decision):
    return (decision.prefill.name if decision.prefill else None, decision.chosen.name)


# --- auto -------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_elsewhere_than_where_streams_would_stand_still_for_it():
    assert names(decide(LONG, [busy(P0), busy(D0, streams=4)])) == ("p0", "d0")


def test_without_streams_to_stall_a_kv_transfer_is_not_worth_its_time():
    assert names(decide(LONG, idle(P0, D0))) == (None, "d0")


def test_answers_do_not_begin_on_a_prefill_worker_even_before_it_was_given_a_prompt():
    decision = decide(SHORT, [busy(P0), busy(D0, streams=3)], paces=make_paces(prefill_reads=0.0))
    assert decision.chosen is D0


def test_a_prefill_worker_with_little_to_read_takes_whole_requests_from_busy_decode_workers():
    candidates = [busy(P0), busy(D0, streams=40)]
    assert names(decide(SHORT, candidates, paces=make_paces(prefill_reads=0.0))) == (None, "p0")
    assert decide(SHORT, candidates, paces=make_paces(prefill_reads=0.5)).chosen is D0


def test_a_short_prompt_is_not_worth_a_kv_transfer_even_beside_streams():
    decision = decide(SHORT, [busy(P0, unread=1), busy(D0, streams=2)])
    assert names(decision) == (None, "d0")


def test_a_prompt_is_read_where_it_is_written_when_the_prefill_worker_has_a_queue():
    assert names(decide(LONG, [busy(P0, unread=40), busy(D0, streams=2)])) == (None, "d0")


def test_a_prompt_is_not_read_where_others_come_so_often_that_many_would_wait_for_it():
    quiet, visited = make_paces(), make_paces()
    for _ in range(240):
        visited.reading.placed(D0.ref, 0.05, 0.0)
    candidates = [busy(P0, unread=12), busy(D0, streams=1)]
    assert names(decide(LONG, candidates, paces=quiet)) == (None, "d0")
    assert names(decide(LONG, candidates, paces=visited)) == ("p0", "d0")


def test_slots_held_for_prompts_in_prefill_elsewhere_add_no_wait():
    with_slots, without = (
        decide(SHORT, [busy(D0, unread=1, read_elsewhere=slots)]).options[0].terms.wait_s for slots in (50, 0)
    )
    assert with_slots == without


def test_a_slow_network_makes_kv_transfers_lose():
    paces = make_paces(fetch_s_per_token=0.01)
    assert decide(LONG, [busy(P0), busy(D0, streams=4)], paces=paces).prefill is None


def test_a_kv_transfer_is_tried_before_one_was_timed():
    paces, candidates = make_paces(fetches=False), [busy(P0), busy(D0, streams=4)]
    assert decide(LONG, candidates, paces=paces).prefill is P0
    paces.learn_fetch(D0.ref, 500, 0.02)
    assert decide(LONG, candidates, paces=paces).prefill is P0


def test_a_network_that_became_slow_is_used_no_more_after_thirty_kv_transfers():
    paces = make_paces()
    policy, candidates = make_policy(paces=paces), [busy(P0), busy(D0, streams=4)]
    for number in range(500):
        paces.learn_fetch(D0.ref, 500 + number * 10, 0.01 + 5e-6 * (500 + number * 10))
    assert policy(LONG, candidates, all_pairs).prefill is P0
    for number in range(30):
        tokens = 500 + number * 200
        paces.learn_fetch(D0.ref, tokens, 1_000 * (0.01 + 5e-6 * tokens))
    assert policy(LONG, candidates, all_pairs).prefill is None


def test_what_the_decode_worker_has_cached_counts_against_a_kv_transfer():
    request = make_request(prompt_bytes=24_000, max_output_tokens=100, splittable=True, prefix_hashes=(1,))
    candidates = [busy(P0), busy(D0, streams=4)]
    assert decide(request, candidates).prefill is P0
    assert names(decide(request, candidates, prefixes=CachedAt(d0=5_900))) == (None, "d0")


def test_the_prefill_worker_that_holds_the_prefix_is_asked():
    request = make_request(prompt_bytes=24_000, max_output_tokens=100, splittable=True, prefix_hashes=(1,))
    decision = decide(request, [busy(P0), busy(P1), busy(D0, streams=9)], prefixes=CachedAt(p1=5_000))
    assert names(decision) == ("p1", "d0")
    assert decision.options[0].cached_tokens == 5_000


def test_the_least_busy_of_each_side_is_taken():
    candidates = [busy(P0, unread=3), busy(P1), busy(D0, streams=8), busy(D1, streams=5)]
    assert names(decide(LONG, candidates)) == ("p1", "d1")


def test_a_slow_prefill_worker_is_passed_over():
    candidates = [busy(P0), busy(P1), busy(D0, streams=9)]
    assert names(decide(LONG, candidates, paces=make_paces(slow=P0))) == ("p1", "d0")


def test_a_pair_that_may_not_kv_transfer_is_passed_over():
    candidates = [busy(P0), busy(P1), busy(D0, streams=9)]
    assert names(decide(LONG, candidates, lambda prefill, decode: prefill is P1)) == ("p1", "d0")
    assert decide(LONG, candidates, lambda prefill, decode: False).prefill is None


def test_mixed_workers_never_kv_transfer():
    decision = decide(LONG, [busy(P0), busy(MIXED, streams=9)])
    assert decision.prefill is None


def test_a_request_that_is_not_splittable_stays_whole():
    request = make_request(prompt_bytes=24_000, max_output_tokens=100)
    assert decide(request, [busy(P0, unread=9), busy(D0, streams=9)]).prefill is None


def test_while_no_pace_is_known_the_decode_worker_takes_the_whole_and_the_reason_says_so():
    decision = decide(LONG, idle(P0, D0), paces=EngineSpeeds(WORKERS))
    assert names(decision) == (None, "d0")
    assert decision.reason.startswith("the engines' speed is unknown yet")
    assert decision.options == ()


def test_the_reason_gives_the_figures_of_both_kinds():
    decision = decide(LONG, [busy(P0, streams=1), busy(D0, streams=4)])
    assert decision.reason.startswith("p0 then d0: ")
    assert ", against " in decision.reason
    assert decision.reason.endswith("of it taken from others) on d0 alone")


def test_the_terms_of_what_lost_are_kept_with_the_best_of_the_other_kind_second():
    candidates = [busy(P0), busy(P1), busy(D0, streams=4), busy(D1, streams=5)]
    decision = decide(LONG, candidates)
    first, second = decision.options[:2]
    assert (first.prefill, first.worker) == (P0.ref, D0.ref)
    assert second.prefill is None
    assert len(decision.options) == KEPT_OPTIONS
    costs = [option.terms.cost_s for option in decision.options]
    assert costs[0] == min(costs)


LOADS = st.tuples(st.integers(0, 6), st.integers(0, 6))


@given(
    loads=st.lists(LOADS, min_size=5, max_size=5), tokens=st.integers(1, 8_000), output=st.integers(1, 500)
)
def test_no_kept_option_is_cheaper_than_the_chosen_one_and_terms_add_up(loads, tokens, output):
    request = make_request(prompt_bytes=4 * tokens, max_output_tokens=output, splittable=True)
    candidates = [
        busy(worker, streams=streams, unread=unread)
        for worker, (streams, unread) in zip(WORKERS, loads, strict=True)
    ]
    decision = POLICY(request, candidates, all_pairs)
    chosen = decision.options[0]
    assert (chosen.worker, chosen.prefill) == (
        decision.chosen.ref,
        decision.prefill.ref if decision.prefill else None,
    )
    for option in decision.options:
        terms = option.terms
        assert terms.cost_s >= chosen.terms.cost_s - 1e-9, "but for rounding"
        assert min(terms.wait_s, terms.prefill_s, terms.kv_transfer_s, terms.decode_s, terms.delay_s) >= 0
    assert decision.candidates[0].worker is decision.chosen
    assert decision == POLICY(request, candidates, all_pairs)


POLICY = make_policy()


# --- the rules to compare with ----------------------------------------------------------------------------


def test_never_uses_all_workers_for_whole_requests():
    decision = decide(LONG, [busy(P0), busy(D0, streams=4)], rule=SplitRule.NEVER)
    assert names(decision) == (None, "p0")


def test_always_parts_every_request_that_can_be():
    assert names(decide(SHORT, idle(P0, D0), rule=SplitRule.ALWAYS)) == ("p0", "d0")
    assert decide(SHORT, idle(P0, MIXED), rule=SplitRule.ALWAYS).prefill is None
    assert decide(SHORT, idle(D0), rule=SplitRule.ALWAYS).prefill is None
    assert decide(make_request(), idle(P0, D0), rule=SplitRule.ALWAYS).prefill is None


def test_threshold_goes_by_the_prompts_length():
    assert decide(LONG, idle(P0, D0), rule=SplitRule.THRESHOLD).prefill is P0
    assert decide(SHORT, idle(P0, D0), rule=SplitRule.THRESHOLD).prefill is None


@pytest.mark.parametrize("rule", SplitRule)
def test_prefill_workers_serve_whole_requests_when_there_is_no_other_worker(rule):
    assert names(decide(LONG, idle(P0), rule=rule)) == (None, "p0")

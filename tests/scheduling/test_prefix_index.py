"""What is remembered of workers' caches, how it is forgotten, and how far it is believed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.prefix_index import PrefixIndex

W0, W1 = WorkerRef("w0", "1"), WorkerRef("w1", "1")
HASHES = tuple(range(1, 11))
TOKENS = 1_344
EXPECTED = 1_280
"""Ten blocks and a half of the prompt are 1,344 tokens, so the ten are 1,280."""


def serve(index, worker=W0, hashes=HASHES, cached_tokens=0):
    """As the flow does: the held blocks are read before, and passed with the report."""
    held_blocks = index.held_blocks(worker, hashes)
    index.served(worker, hashes, TOKENS, cached_tokens, held_blocks)


def test_nothing_is_expected_of_a_worker_that_served_nothing():
    assert PrefixIndex().cached_tokens(W0, HASHES, TOKENS) == 0


def test_what_was_served_is_expected_where_it_was_served_and_nowhere_else():
    index = PrefixIndex()
    serve(index)
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED
    assert index.cached_tokens(W1, HASHES, TOKENS) == 0


def test_of_all_workers_those_are_named_that_hold_anything():
    index = PrefixIndex()
    serve(index)
    serve(index, W1, (77,))
    assert index.cached_on(HASHES, TOKENS) == {W0: EXPECTED}
    assert index.cached_on((), TOKENS) == {}


def test_a_longer_prompt_is_expected_as_far_as_its_beginning_was_served():
    index = PrefixIndex()
    serve(index, hashes=HASHES[:5])
    assert index.held_blocks(W0, HASHES) == 5
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED // 2


def test_a_restarted_engine_has_an_empty_cache():
    index = PrefixIndex()
    serve(index)
    after = WorkerRef("w0", "2")
    assert index.cached_tokens(after, HASHES, TOKENS) == 0
    serve(index, after, (77,))
    assert index.held_blocks(W0, HASHES) == index.held_blocks(after, HASHES) == 0
    assert index.known_blocks(after) == 1


def test_a_worker_that_drops_everything_loses_its_credit_by_and_by_and_regains_it():
    index = PrefixIndex()
    serve(index)
    expected = []
    for _ in range(30):
        serve(index, cached_tokens=0)
        expected.append(index.cached_tokens(W0, HASHES, TOKENS))
    assert expected == sorted(expected, reverse=True)
    assert expected[7] < EXPECTED * 0.4
    assert expected[-1] < EXPECTED * 0.02
    for _ in range(30):
        serve(index, cached_tokens=EXPECTED)
    assert index.cached_tokens(W0, HASHES, TOKENS) > EXPECTED * 0.9


def test_a_worker_that_keeps_what_it_served_keeps_its_credit_though_replies_add_to_it():
    index = PrefixIndex()
    for _ in range(9):
        serve(index, cached_tokens=TOKENS)
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED


def test_equal_prompts_that_came_cold_at_once_are_no_disappointment():
    index = PrefixIndex()
    for held_blocks in [index.held_blocks(W0, HASHES) for _ in range(8)]:
        index.served(W0, HASHES, TOKENS, 0, held_blocks)
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED


def test_a_report_that_is_not_judged_is_remembered_only():
    index = PrefixIndex()
    for _ in range(8):
        index.served(W0, HASHES, TOKENS, 0)
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED


def test_a_beginning_too_short_for_a_block_of_the_engine_is_not_held_against_a_worker():
    # A system prompt of 115 tokens fills one of our blocks and none of an engine's that has 128.
    index = PrefixIndex()
    conversations = [(1, *range(100 * number, 100 * number + 9)) for number in range(1, 21)]
    for hashes in conversations:
        serve(index, hashes=hashes, cached_tokens=0)
    assert [index.held_blocks(W0, hashes) for hashes in conversations] == [10] * 20
    assert index.cached_tokens(W0, HASHES, TOKENS) == EXPECTED // 10


def test_a_few_disappointments_in_a_row_cost_credit_and_no_memory():
    index = PrefixIndex()
    conversations = [tuple(range(first, first + 10)) for first in range(0, 200, 10)]
    for hashes in conversations:
        serve(index, hashes=hashes)
    for _ in range(4):
        serve(index, hashes=conversations[0], cached_tokens=0)
    assert [index.held_blocks(W0, hashes) for hashes in conversations] == [10] * 20
    assert index.cached_tokens(W0, conversations[1], TOKENS) < EXPECTED * 0.6


def test_a_worker_that_mostly_disappoints_is_forgotten_but_for_what_it_served_since():
    index = PrefixIndex()
    conversations = [tuple(range(first, first + 10)) for first in range(0, 100, 10)]
    for hashes in conversations:
        serve(index, hashes=hashes)
    for hashes in conversations[:8]:
        serve(index, hashes=hashes, cached_tokens=0)
    assert index.held_blocks(W0, conversations[9]) == 0
    assert index.held_blocks(W0, conversations[7]) == 10


def test_what_was_served_last_outlives_what_was_served_long_ago():
    index = PrefixIndex(most_blocks=40)
    for first in range(0, 200, 10):
        serve(index, hashes=tuple(range(first, first + 10)))
    assert index.held_blocks(W0, tuple(range(190, 200))) == 10
    assert index.held_blocks(W0, tuple(range(10))) == 0


def test_what_was_served_before_the_last_is_still_held():
    index = PrefixIndex(most_blocks=40)
    for first in (0, 10, 20):
        serve(index, hashes=tuple(range(first, first + 10)))
    assert [index.held_blocks(W0, tuple(range(first, first + 10))) for first in (0, 10, 20)] == [10] * 3
    assert index.cached_on(tuple(range(10)), TOKENS) == {W0: EXPECTED}


def test_what_is_used_again_and_again_is_kept():
    index = PrefixIndex(most_blocks=40)
    for first in range(100, 300, 10):
        serve(index, hashes=HASHES, cached_tokens=EXPECTED)
        serve(index, hashes=tuple(range(first, first + 10)))
        assert index.held_blocks(W0, HASHES) == 10


def test_a_prompt_longer_than_all_that_may_be_remembered_is_known_by_its_beginning():
    index = PrefixIndex(most_blocks=8)
    serve(index)
    assert index.held_blocks(W0, HASHES) == 4
    index.check_invariants()


@given(chains=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=30))
def test_with_enough_capacity_it_holds_exactly_the_longest_beginning_that_was_served(chains):
    # As prefix hashes are: each names all before it.
    index, served = PrefixIndex(), []
    for chain in chains:
        hashes = tuple(hash(tuple(chain[: end + 1])) for end in range(len(chain)))
        longest = max((common(hashes, other) for other in served), default=0)
        assert index.held_blocks(W0, hashes) == longest
        index.served(W0, hashes, TOKENS, 0)
        served.append(hashes)


def common(one, other):
    unlike = (end for end, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


class Remembering(RuleBasedStateMachine):
    """Engines that really cache, drop and restart, with a small memory of them beside."""

    def __init__(self):
        super().__init__()
        self.index = PrefixIndex(most_blocks=64)
        self.incarnations = dict.fromkeys(("w0", "w1", "w2"), 1)
        self.computed = {}

    def ref(self, name):
        return WorkerRef(name, str(self.incarnations[name]))

    @rule(
        name=st.sampled_from(("w0", "w1", "w2")),
        chain=st.integers(0, 5),
        length=st.integers(0, 40),
        cached_share=st.floats(0, 2),
        asked_before=st.booleans(),
    )
    def serve(self, name, chain, length, cached_share, asked_before):
        hashes = tuple(1_000 * chain + place for place in range(length))
        held_blocks = self.index.held_blocks(self.ref(name), hashes) if asked_before else 0
        self.index.served(self.ref(name), hashes, 128 * length, int(128 * length * cached_share), held_blocks)
        self.computed.setdefault(self.ref(name), set()).update(hashes)

    @rule(name=st.sampled_from(("w0", "w1", "w2")))
    def restart(self, name):
        self.incarnations[name] += 1

    @invariant()
    def who_knows_a_block_knows_all_before_it(self):
        for memory in self.index._memories.values():
            for chain in range(6):
                known = [1_000 * chain + place in memory.younger | memory.older for place in range(40)]
                assert known == sorted(known, reverse=True)

    @invariant()
    def bounded(self):
        self.index.check_invariants()

    @invariant()
    def nothing_is_expected_that_this_incarnation_did_not_compute(self):
        for name in self.incarnations:
            computed = self.computed.get(self.ref(name), set())
            for chain in range(6):
                hashes = tuple(1_000 * chain + place for place in range(40))
                held = self.index.held_blocks(self.ref(name), hashes)
                assert set(hashes[:held]) <= computed
                cached = self.index.cached_tokens(self.ref(name), hashes, 5_000)
                assert 0 <= cached <= 5_000 * held / 40


TestRemembering = Remembering.TestCase

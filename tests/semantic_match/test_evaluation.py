"""What a rule for matching did to pairs of known meaning is counted by kind, and nothing is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.semantic_match.evaluation import RULES, Guarding, Rule, ScoredPair, evaluate
from phasewise.semantic_match.guards import Guard

PAIRS = st.lists(
    st.builds(
        ScoredPair,
        kind=st.sampled_from(["paraphrase", "negation", "number"]),
        duplicate=st.booleans(),
        similarity=st.floats(-1, 1),
        veto=st.sampled_from([None, Guard.NEGATION, Guard.CONTENT]),
    ),
    max_size=30,
)


def only(rule, *pairs):
    (evaluation,) = evaluate(pairs, [rule])
    return evaluation


def test_a_pair_at_the_threshold_is_a_hit_and_one_below_is_not():
    found = only(Rule(0.9), ScoredPair("paraphrase", True, 0.9), ScoredPair("paraphrase", True, 0.899))
    assert (found.total.hits, found.total.duplicates, found.total.recall) == (1, 2, 0.5)


def test_a_near_miss_that_is_served_costs_precision_and_stands_under_its_kind():
    found = only(Rule(0.9), ScoredPair("paraphrase", True, 0.95), ScoredPair("negation", False, 0.98))
    assert found.total.precision == 0.5
    assert found.worst_kind.kind == "negation"
    assert found.worst_kind.false_hit_share == 1.0
    assert [kind.kind for kind in found.kinds] == ["paraphrase", "negation"]


def test_the_other_guards_are_heeded_without_that_of_content():
    pairs = [
        ScoredPair("number", False, 0.99, Guard.NUMBERS),
        ScoredPair("modifier", False, 0.99, Guard.CONTENT),
    ]
    hits = {guarding: only(Rule(0.9, guarding), *pairs).total.false_hits for guarding in Guarding}
    assert hits == {Guarding.NONE: 2, Guarding.BUT_CONTENT: 1, Guarding.ALL: 0}


def test_shares_of_nothing_are_unknown_rather_than_zero():
    found = only(Rule(0.9), ScoredPair("negation", False, 0.1))
    assert found.total.precision is None
    assert found.total.recall is None
    assert found.worst_kind.false_hit_share == 0.0
    assert only(Rule(0.9)).worst_kind is None


def test_a_file_may_hold_both_meanings_under_one_kind():
    found = only(Rule(0.5), ScoredPair("mixed", True, 0.9), ScoredPair("mixed", False, 0.9))
    (kind,) = found.kinds
    assert (kind.duplicates, kind.hits, kind.others, kind.false_hits) == (1, 1, 1, 1)


@given(PAIRS)
@settings(max_examples=50)
def test_kinds_add_up_to_all_pairs_and_stricter_rules_serve_less(pairs):
    evaluations = {it.rule: it.total for it in evaluate(pairs)}
    for total in evaluations.values():
        assert total.duplicates + total.others == len(pairs)
        assert total.hits <= total.duplicates
        assert total.false_hits <= total.others
    for rule in RULES:
        for other in RULES:
            if other.min_similarity >= rule.min_similarity and _heeds_more(other, rule):
                assert evaluations[other].hits <= evaluations[rule].hits
                assert evaluations[other].false_hits <= evaluations[rule].false_hits


def _heeds_more(one, other):
    order = list(Guarding)
    return order.index(one.guarding) >= order.index(other.guarding)

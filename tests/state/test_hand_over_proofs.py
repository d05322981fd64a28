"""What is known of a pair holds for its present incarnations, and news is told once."""

from phasewise.model.worker import WorkerRef
from phasewise.state.hand_over_proofs import HandOverProofs

P, D = WorkerRef("p", "1"), WorkerRef("d", "1")


def test_a_pair_is_proven_until_one_of_its_engines_is_another():
    proofs = HandOverProofs()
    proofs.prove(P, D, 5.0)
    assert proofs.is_proven(P, D)
    assert proofs.last_tried_s(P, D) == 5.0
    assert not proofs.is_proven(P, WorkerRef("d", "2"))
    assert proofs.last_tried_s(P, WorkerRef("d", "2")) is None


def test_a_failure_is_news_once_and_its_end_too():
    proofs = HandOverProofs()
    assert proofs.fail(P, D, 1.0)
    assert not proofs.fail(P, D, 2.0)
    assert proofs.failing("d") == 1
    assert proofs.prove(P, D, 3.0)
    assert not proofs.prove(P, D, 4.0)
    assert proofs.failing("d") == 0
    assert proofs.last_proven_s("d") == 4.0


def test_a_trial_that_told_nothing_is_not_made_again_at_once():
    proofs = HandOverProofs()
    proofs.put_off(P, D, 7.0)
    assert proofs.last_tried_s(P, D) == 7.0
    assert not proofs.is_proven(P, D)
    assert proofs.failing("d") == 0

"""The records of a pair hold for its present incarnations, and news is reported once."""

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.kv_proofs import KvTransferProofs

P, D = WorkerRef("p", "1"), WorkerRef("d", "1")


def test_a_pair_is_proven_until_one_of_its_engines_is_another():
    proofs = KvTransferProofs()
    proofs.prove(P, D, 5.0)
    assert proofs.is_proven(P, D)
    assert proofs.last_tried_s(P, D) == 5.0
    assert not proofs.is_proven(P, WorkerRef("d", "2"))
    assert proofs.last_tried_s(P, WorkerRef("d", "2")) is None


def test_a_failure_is_news_once_and_its_end_too():
    proofs = KvTransferProofs()
    assert proofs.fail(P, D, 1.0)
    assert not proofs.fail(P, D, 2.0)
    assert proofs.failing("d") == 1
    assert proofs.prove(P, D, 3.0)
    assert not proofs.prove(P, D, 4.0)
    assert proofs.failing("d") == 0
    assert proofs.last_proven_s("d") == 4.0


def test_an_inconclusive_trial_is_not_repeated_at_once():
    proofs = KvTransferProofs()
    proofs.put_off(P, D, 7.0)
    assert proofs.last_tried_s(P, D) == 7.0
    assert not proofs.is_proven(P, D)
    assert proofs.failing("d") == 0

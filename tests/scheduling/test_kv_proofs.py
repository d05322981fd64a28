"""What is known of pairs that transfer KV, and what decode engines computed again."""

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.kv_proofs import KvTransferProofs

P, D = WorkerRef("p", "1"), WorkerRef("d", "1")


def test_a_pair_that_failed_counts_until_it_is_proved():
    proofs = KvTransferProofs()
    proofs.fail(P, D, 1.0)
    proofs.fail(P, D, 2.0)
    assert proofs.failing("d") == 1
    assert proofs.prove(P, D, 3.0)
    assert not proofs.prove(P, D, 4.0)
    assert proofs.failing("d") == 0
    assert proofs.last_proven_s("d") == 4.0

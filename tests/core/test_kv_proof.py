"""Counters that anybody's requests move prove a KV transfer only where nothing else explains them."""

import pytest

from phasewise.core.kv_transfer import KvProof, kv_proof


@pytest.mark.parametrize(
    ("moved", "computed", "proof"),
    [
        (300.0, 0.0, KvProof.MOVED),
        (300.0, None, KvProof.MOVED),
        (1_500.0, 299.0, KvProof.MOVED),
        (1_500.0, 300.0, KvProof.HIDDEN),
        (299.0, 0.0, KvProof.NOT_MOVED),
        (150.0, 150.0, KvProof.NOT_MOVED),
        (None, 300.0, KvProof.NOT_MOVED),
        (None, None, KvProof.UNCOUNTED),
    ],
)
def test_a_prompt_of_300_tokens_is_judged_by_what_was_fetched_and_what_was_computed(moved, computed, proof):
    assert kv_proof(moved, computed, 300) is proof


def test_a_prompt_of_nothing_proves_nothing():
    assert kv_proof(0.0, 0.0, 0) is KvProof.NOT_MOVED

"""A rejection names the model that was asked for, what is served, the workers and the next step."""

from __future__ import annotations

from dataclasses import replace

from phasewise.core.decision import RejectReason
from phasewise.core.errors import FailureKind
from phasewise.core.worker import UNKNOWN_MODEL
from phasewise.scheduling.rejections import (
    SHOWN_CHARACTERS,
    all_attempts_failed,
    no_healthy_worker,
    no_worker_for_model,
    queue_timeout,
)
from phasewise.scheduling.world import ClusterView, Health
from tests.builders import make_worker


def cluster_of(*names, model="m1"):
    return ClusterView(
        [replace(make_worker(name), model=model, url="http://10.0.0.1:8000") for name in names]
    )


def test_an_unknown_model_is_named_with_those_that_are_served():
    rejected = no_worker_for_model("gpt-4", cluster_of("a"))
    assert rejected.reason is RejectReason.NO_WORKER_FOR_MODEL
    assert rejected.detail == "no worker serves the model 'gpt-4'. hint: ask for one that is served: m1"


def test_a_long_model_name_is_cut_and_many_models_are_counted():
    workers = [replace(make_worker(f"w{number}"), model=f"m{number}") for number in range(20)]
    rejected = no_worker_for_model("x" * 5_000, ClusterView(workers))
    assert "x" * SHOWN_CHARACTERS + "..." in rejected.detail
    assert len(rejected.detail) < 400
    assert rejected.detail.endswith("m6, m7 and 12 more")


def test_while_an_engine_has_not_said_its_model_the_client_may_try_again():
    rejected = no_worker_for_model("m1", cluster_of("a", model=UNKNOWN_MODEL))
    assert rejected.reason is RejectReason.NO_HEALTHY_WORKER
    assert rejected.retry_after_s == 1.0
    assert "a was not checked yet, and what it serves is still unknown" in rejected.detail


def test_workers_that_do_not_serve_are_named_with_their_state_and_without_their_address():
    cluster = cluster_of("a", "b", "c", "d", "e")
    cluster.mark_down("a", "http://10.0.0.1:8000 cannot be reached")
    cluster.mark_still("b", Health.HUNG, "")
    rejected = no_healthy_worker("m1", cluster, attempts=1)
    expected = (
        "no worker of the model 'm1' answers: a is down, b stands still, c was not checked yet and 2 more"
    )
    assert rejected.detail.startswith(expected)
    assert "phasewise status" in rejected.detail
    assert "10.0.0.1" not in rejected.detail
    assert rejected.attempts == 1


def test_workers_of_other_models_are_not_named():
    workers = [replace(make_worker("a"), model="m1"), replace(make_worker("b"), model="m2")]
    assert "b was" not in no_healthy_worker("m1", ClusterView(workers), 0).detail


def test_failed_attempts_name_their_workers():
    rejected = all_attempts_failed([make_worker("a").ref, make_worker("b").ref], FailureKind.CLOSED, 2)
    assert rejected.detail.startswith(
        "2 attempts failed on a, b; the last one because the engine closed the connection. hint: "
    )


def test_a_wait_in_vain_names_workers_with_an_open_circuit():
    assert queue_timeout("m1", ["a"], 2.0, 0).detail.endswith("most requests fail there: a")
    assert queue_timeout("m1", [], 2.0, 0).detail == "no worker of the model 'm1' had a free slot in time"

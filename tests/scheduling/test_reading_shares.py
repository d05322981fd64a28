"""How much of its time a worker reads is remembered for a while."""

import pytest

from phasewise.core.worker import WorkerRef
from phasewise.scheduling.engine_speed import ReadingShares

WORKER = WorkerRef("p0", "1")


def test_a_worker_without_prompts_has_no_prefill_share():
    assert ReadingShares().lately(WORKER, 5.0) == (0.0, 0.0)


def test_steady_prompts_make_up_their_share_of_the_time():
    shares = ReadingShares()
    for second in range(0, 1_200, 10):
        shares.placed(WORKER, 4.0, float(second))
    assert shares.lately(WORKER, 1_195.0).share == pytest.approx(0.4, rel=0.1)
    assert shares.lately(WORKER, 1_195.0).prompts_per_s == pytest.approx(0.1, rel=0.1)


def test_prompts_of_long_ago_are_forgotten_and_a_restart_changes_nothing():
    shares = ReadingShares()
    shares.placed(WORKER, 60.0, 0.0)
    assert shares.lately(WorkerRef("p0", "2"), 1.0).share == pytest.approx(0.5, rel=0.1)
    assert shares.lately(WORKER, 1_200.0).share < 0.001


def test_a_clock_that_is_a_little_behind_does_no_harm():
    shares = ReadingShares()
    shares.placed(WORKER, 60.0, 10.0)
    assert shares.lately(WORKER, 9.0).share == 0.5

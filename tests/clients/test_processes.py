"""Who kept an engine from the processors: others do count, its own threads do not."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from phasewise.clients.host import CpuTimes
from phasewise.clients.processes import CpuReading, CpuSource, ThreadTime, between, snapshot

ONE, BOTH = frozenset({0}), frozenset({0, 1})
WINDOW_S = 10.0
BUSY = "import time\nprint(flush=True)\nwhile True:\n    pass"


def reading(
    at_s=0.0, threads=(), *, busy_s=(0.0, 0.0), stolen_s=0.0, pressed_s=0.0, throttled_s=None, **fields
):
    """A host of two cores; `threads` are (ran, ready, cores) of one process."""
    cores = {core: CpuTimes(busy, stolen_s, at_s) for core, busy in enumerate(busy_s)}
    reported = {(1, tid): ThreadTime(*thread) for tid, thread in enumerate(threads)}
    return CpuReading(
        **{
            "at_s": at_s,
            "processes_s": {1: sum(thread.ran_s for thread in reported.values())},
            "front_ends": frozenset(),
            "threads": reported,
            "host": CpuTimes(sum(busy_s), 0.0, 2 * at_s),
            "cores": cores,
            "pressed_s": pressed_s,
            "throttled_s": throttled_s,
            **fields,
        }
    )


def waited(threads, **fields):
    return between(reading(), reading(WINDOW_S, threads, **fields)).wait_share


def test_a_hog_on_the_engines_core_takes_half_of_what_it_wanted():
    assert waited([(5.0, 5.0, ONE)], busy_s=(10.0, 0.0)) == pytest.approx(0.5)


def test_threads_that_wait_for_each_other_are_not_starved_by_others():
    assert waited([(5.0, 5.0, ONE), (5.0, 5.0, ONE)], busy_s=(10.0, 0.0)) == 0.0


def test_of_two_threads_and_a_hog_on_one_core_the_hog_is_blamed_for_its_third():
    third_s = WINDOW_S / 3
    share = waited([(third_s, 2 * third_s, ONE)] * 2, busy_s=(10.0, 0.0))
    assert share == pytest.approx(1 / 3)


def test_a_busy_core_that_the_engine_may_not_use_is_none_of_its_business():
    assert waited([(9.0, 1.0, ONE)], busy_s=(9.0, 10.0)) == 0.0


def test_what_a_limit_held_back_counts_as_waiting():
    assert waited([(5.0, 5.0, BOTH)], busy_s=(5.0, 0.0), throttled_s=5.0) == pytest.approx(0.5)


def test_what_a_hypervisor_stole_counts_though_no_thread_was_seen_to_wait():
    assert waited([(5.0, 0.0, ONE)], busy_s=(5.0, 0.0), stolen_s=5.0) == pytest.approx(0.5)


def test_an_idle_engine_is_not_judged_by_how_long_it_takes_to_wake_up():
    assert waited([(0.1, 0.1, ONE)], busy_s=(10.0, 10.0)) is None


def test_an_engine_that_waits_for_a_device_stands_still_for_less_than_its_threads_wait():
    use = between(reading(), reading(WINDOW_S, [(0.5, 0.5, ONE), (0.5, 0.3, ONE)], busy_s=(10.0, 0.0)))
    assert use.wait_share > 0.3
    assert 0.04 < use.stalled_share <= 0.05


def test_where_no_thread_reports_the_pressure_of_the_host_is_used():
    before, after = reading(), reading(WINDOW_S, busy_s=(10.0, 10.0), pressed_s=8.0, processes_s={1: 5.0})
    use = between(before, after)
    assert use.source is CpuSource.PRESSURE
    assert use.wait_share == pytest.approx(0.8 * 15 / 20)
    assert between(before, reading(WINDOW_S, processes_s={1: 5.0}, pressed_s=None)).wait_share is None


def test_cores_are_of_all_processes_and_the_front_end_is_the_busiest_of_its_kind():
    before = reading(processes_s={1: 1.0, 2: 0.0, 3: 0.0})
    after = reading(WINDOW_S, processes_s={1: 2.0, 2: 9.0, 3: 10.0}, front_ends=frozenset({1, 2}))
    use = between(before, after)
    assert use.cores_busy == pytest.approx(2.0)
    assert use.front_end_cores == pytest.approx(0.9)


@contextmanager
def running(core):
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            os.sched_setaffinity(process.pid, {core})
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def test_a_real_hog_on_the_same_core_is_seen():
    core = max(os.sched_getaffinity(0))
    with running(core) as engine, running(core):
        before = snapshot(engine)
        time.sleep(0.6)
        use = between(before, snapshot(engine))
    assert use.source is CpuSource.RUN_QUEUE
    # Half, if nobody else runs there.
    assert use.wait_share > 0.3
    assert 0.05 < use.cores_busy < 0.75
    assert use.front_end_cores is None


def test_a_process_that_is_gone_has_no_reading():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as ended:
        ended.wait()
    assert snapshot(ended.pid) is None

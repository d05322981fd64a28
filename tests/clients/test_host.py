from __future__ import annotations

import time

import psutil
import pytest

from phasewise.clients.host import busy_share, read_core_times, read_cpu_times, stolen_share, usable_cores


def test_shares_are_of_the_time_between_two_readings(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 1\ncpu3 100 0 100 800 0 0 0 0 0 0\nintr 1 2\n")
    before = read_core_times(stat)[3]
    stat.write_text("cpu  1 1\ncpu3 130 0 120 830 10 0 0 10 0 0\nintr 1 2\n")
    after = read_core_times(stat)[3]
    assert busy_share(before, after) == pytest.approx(0.5)
    assert stolen_share(before, after) == pytest.approx(0.1)
    assert (busy_share(after, after), stolen_share(after, after)) == (0.0, 0.0)


def test_a_system_that_does_not_tell_is_none(tmp_path, monkeypatch):
    assert read_core_times(tmp_path / "missing") == {}
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path), raising=False)
    assert read_cpu_times() is None


def test_processors_together_are_the_sum_of_each():
    together, each = read_cpu_times(), read_core_times()
    assert sum(times.total_s for times in each.values()) == pytest.approx(together.total_s, rel=0.01)
    assert set(usable_cores()) <= set(each)


def test_this_machines_processors_do_work():
    before = read_cpu_times()
    deadline_s = time.monotonic() + 0.2
    while time.monotonic() < deadline_s:
        pass
    after = read_cpu_times()
    assert before is not None
    assert after is not None
    assert after.busy_s > before.busy_s

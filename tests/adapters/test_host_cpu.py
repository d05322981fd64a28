from __future__ import annotations

import time

import pytest

from phasewise.adapters.host_cpu import busy_share, read_cpu_times, stolen_share


def test_shares_are_of_the_time_between_two_readings(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1\n")
    before = read_cpu_times(stat)
    stat.write_text("cpu  130 0 120 830 10 0 0 10 0 0\ncpu0 1 1\n")
    after = read_cpu_times(stat)
    assert before is not None
    assert after is not None
    assert busy_share(before, after) == pytest.approx(0.5)
    assert stolen_share(before, after) == pytest.approx(0.1)
    assert (busy_share(after, after), stolen_share(after, after)) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["", "intr 1 2 3\n", "cpu  1 2\n", "cpu a b c d e f g h\n"])
def test_a_system_that_does_not_tell_is_none(tmp_path, text):
    stat = tmp_path / "stat"
    stat.write_text(text)
    assert read_cpu_times(stat) is None
    assert read_cpu_times(tmp_path / "missing") is None


def test_this_machines_processors_do_work():
    before = read_cpu_times()
    deadline_s = time.monotonic() + 0.2
    while time.monotonic() < deadline_s:
        pass
    after = read_cpu_times()
    assert before is not None
    assert after is not None
    assert after.busy_s > before.busy_s

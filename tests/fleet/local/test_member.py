"""One member: what is read of its log, and who may read it."""

import stat
import tracemalloc
from pathlib import Path

import pytest

from phasewise.fleet.local.member import LOG_TAIL_BYTES, Member
from tests.fleet.builders import make_plan


@pytest.fixture
def member(tmp_path):
    member = Member(make_plan(tmp_path).engines[0], tmp_path / "scratch", 1.0)
    yield member
    if member.child is not None:
        member.child.kill()
        member.child._popen.wait()
    member.close()


def test_of_a_huge_log_only_the_end_is_read(member):
    with Path(member.plan.process.log).open("wb") as log:
        log.truncate(64 * 2**20)  # a sparse file
        log.seek(0, 2)
        log.write(b" half a line\nValueError: it broke\n")
    tracemalloc.start()
    try:
        member.read_log()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * 2**20
    assert member.informative_line == "ValueError: it broke"


def test_lines_are_read_once_and_only_when_whole(member):
    log = Path(member.plan.process.log)
    log.write_text("first\nValueError: sec")
    member.read_log()
    assert member.informative_line == "first"
    with log.open("a") as file:
        file.write("ond\n")
    member.read_log()
    assert member.informative_line == "ValueError: second"


def test_a_line_cut_by_the_bound_is_left_out(member):
    end = b"ValueError: only quoted here ".ljust(LOG_TAIL_BYTES - 6, b".") + b"\nkept\n"
    Path(member.plan.process.log).write_bytes(b"the beginning of the line " + end)
    member.read_log()
    assert member.informative_line == "kept"


@pytest.mark.parametrize("was_there", [False, True])
def test_a_log_is_its_users_alone(member, was_there):
    log = Path(member.plan.process.log)
    if was_there:
        log.write_text("of an earlier time\n")
        log.chmod(0o644)
    member.start()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600

"""The memory that processes share: columns of their own, rows under a lock, nothing left of the dead."""

from __future__ import annotations

import os

import pytest

from phasewise.core.limits import Lease, LimitKind, Limits
from phasewise.gateway.processes.board import COLUMNS, Board, create_board
from phasewise.gateway.processes.limits import BoardQuotas
from phasewise.gateway.processes.neighbours import first_of


@pytest.fixture
def fd():
    made = create_board()
    yield made
    os.close(made)


def in_a_process(work):
    """Whether `work` came to its end in a process of its own."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_sees_the_load_of_the_others_and_not_its_own(fd):
    one, other = Board(fd, 0), Board(fd, 1)
    for board in (one, other):
        board.add_load("w0", (1, 100, 60, 0, 1))
    other.add_load("w0", (1, 10, 0, 1, 0))
    other.add_load("unknown to the first", (1, 1, 1, 1, 1))
    assert one.others_loads() == {"w0": [2, 110, 60, 1, 1]}
    assert other.others_loads() == {"w0": [1, 100, 60, 0, 1]}


def test_nothing_is_left_of_a_process_that_died(fd):
    one = Board(fd, 0)
    one.worker_row("w0")

    def work():
        other = Board(fd, 1)
        other.add_load("w0", (1, 100, 60, 0, 1))
        other.set_turn((3, 0, 17, 5))
        with other.key_row("key") as row:
            row.add_slot(1)

    assert in_a_process(work)
    assert one.others_loads() == {"w0": [1, 100, 60, 0, 1]}
    assert one.turns == {1: [3, 0, 17, 5]}
    assert one.free_column() == 2
    one.clear(1)
    assert one.others_loads() == {}
    assert one.turns == {}
    assert one.free_column() == 1
    with one.key_row("key") as row:
        assert row.slots == 0


def test_the_lock_of_a_process_that_dies_within_a_row_is_free(fd):
    one = Board(fd, 0)

    def dies():
        with Board(fd, 1).key_row("key"):
            os._exit(0)

    assert in_a_process(dies)
    with one.key_row("key") as row:
        assert row.full_at_us == (0, 0)


def test_a_turn_is_known_until_it_is_taken_back(fd):
    boards = [Board(fd, column) for column in range(2)]
    assert boards[0].turns == {}
    boards[0].set_turn((7, 0, 20, 10))
    boards[1].set_turn((8, 1, 5, 0))
    assert boards[0].turns == boards[1].turns == {0: [7, 0, 20, 10], 1: [8, 1, 5, 0]}
    boards[0].set_turn(())
    assert boards[1].turns == {1: [8, 1, 5, 0]}


def turn(tenant=1, priority=0, since_us=0, granted_us=0):
    return tenant, priority, since_us, granted_us


@pytest.mark.parametrize(
    ("first", "second", "goes_first"),
    [
        (turn(since_us=5), turn(since_us=3), 1),
        # Of two tenants the one that has not got a slot for longer, whoever waits longer.
        (turn(1, since_us=1, granted_us=9_000), turn(2, since_us=9_500, granted_us=0), 1),
        # A tenant's last slot counts in whichever process it was.
        (turn(1, since_us=1, granted_us=9_000), turn(1, since_us=2, granted_us=0), 0),
        (turn(1, priority=0, since_us=1), turn(2, priority=1, since_us=9_000), 1),
    ],
)
def test_slots_go_round_between_tenants_and_within_one_to_whoever_waits_longest(first, second, goes_first):
    assert first_of({0: first, 1: second}, now_us=10_000, aging_s=5.0) == goes_first


def test_a_lower_priority_rises_while_it_waits_to_the_highest_at_most():
    turns = {0: turn(1, priority=0, since_us=1), 1: turn(2, priority=1, since_us=4_000_000, granted_us=2)}
    assert first_of(turns, now_us=4_500_000, aging_s=5.0) == 1
    assert first_of(turns, now_us=5_500_000, aging_s=5.0) == 0


def test_columns_are_bounded(fd):
    board = Board(fd)
    for column in range(COLUMNS):
        assert board.free_column() == column
        board.reserve(column, 1)
    assert board.free_column() is None


def test_four_processes_let_exactly_the_limit_pass(fd, tmp_path):
    limits = Limits(requests_per_minute=60)

    def work(column):
        quotas, passed = BoardQuotas(Board(fd, column)), 0
        for _ in range(100):
            step = quotas.take("key", limits, 0)
            try:
                step.send(None)
            except StopIteration as end:
                passed += isinstance(end.value, Lease)
        (tmp_path / str(column)).write_text(str(passed))
        os._exit(0)

    pids = []
    for column in range(4):
        pid = os.fork()
        if not pid:
            work(column)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    passed = sum(int((tmp_path / str(column)).read_text()) for column in range(4))
    # The bucket refills by one in a second.
    assert 60 <= passed <= 62


async def test_a_slot_taken_in_one_process_is_missing_in_another_until_it_is_settled(fd):
    one, other = BoardQuotas(Board(fd, 0)), BoardQuotas(Board(fd, 1))
    limits = Limits(max_concurrent=1)
    lease = await one.take("key", limits, 0)
    assert (await other.take("key", limits, 0)).kind is LimitKind.CONCURRENCY
    one.settle(lease, None)
    assert isinstance(await other.take("key", limits, 0), Lease)
    assert isinstance(await other.take("another key", limits, 0), Lease)

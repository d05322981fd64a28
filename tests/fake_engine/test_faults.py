"""What is to go wrong, kept as books: no engine is needed for that."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.fake_engine.faults import Fault, FaultBoard, FaultKind, RequestFaults, fault_from_json


def test_a_board_without_faults_does_no_harm():
    board = FaultBoard()
    assert board.for_request("any") == RequestFaults()
    assert (board.hung, board.step_factor, board.take_death()) == (False, 1.0, None)


def test_a_fault_that_counts_requests_wears_off():
    board = FaultBoard([Fault(FaultKind.ERROR, times=2)])
    assert [board.for_request("").error for _ in range(3)] == [True, True, False]
    assert board.faults == ()


def test_a_fault_without_times_stays():
    board = FaultBoard([Fault(FaultKind.CUT, after_tokens=4)])
    assert [board.for_request("").cut_after_tokens for _ in range(3)] == [4, 4, 4]


def test_slowness_multiplies_and_delays():
    board = FaultBoard([Fault(FaultKind.SLOW, factor=3.0), Fault(FaultKind.SLOW, delay_s=0.5, times=1)])
    assert board.step_factor == 3.0
    assert [board.for_request("").delay_s for _ in range(2)] == [0.5, 0.0]
    assert board.step_factor == 3.0


def test_death_comes_after_so_many_tokens_and_once():
    board = FaultBoard([Fault(FaultKind.DIE, after_tokens=5)])
    board.count_tokens(4)
    assert board.take_death() is None
    board.count_tokens(1)
    assert board.take_death() == Fault(FaultKind.DIE, after_tokens=5)
    assert board.take_death() is None


def test_poison_is_in_the_prompt_and_lasts():
    poison = Fault(FaultKind.POISON, marker="arsenic")
    board = FaultBoard([poison])
    assert board.for_request("milk").poison is None
    assert [board.for_request("some arsenic, please").poison for _ in range(2)] == [poison, poison]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"kind": "melt"}, r"'melt'.*accepted: die, hang, core_hang, cut"),
        ({"kind": "cut", "after": 3}, r"accepted keys: after_tokens"),
        ({"kind": "poison"}, "needs a marker"),
        ({"kind": "slow", "factor": 0}, "factor must be above 0"),
        ({"kind": "cut", "after_tokens": "three"}, "not a fault"),
        ([], "not a fault"),
    ],
)
def test_what_is_no_fault_is_rejected_with_what_is(data, complaint):
    with pytest.raises(ConfigError, match=complaint):
        fault_from_json(data)

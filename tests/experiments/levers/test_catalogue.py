"""What is measured has an identity: a changed definition must not be taken for the one that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.experiments.levers.catalogue import EngineSpec, Recompute, StaticBatches, digest
from phasewise.experiments.levers.workloads import COPIES, SIX_AT_ONCE
from phasewise.fleet.config import Levers
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.texts import Written
from tests.experiments.levers.builders import make_case, make_row


def written(*prompts):
    plan = replace(COPIES.plan, source=Written("questions", prompts, output_tokens=8))
    return replace(COPIES, plan=plan)


def test_other_prompts_are_another_workload():
    assert written("one", "two").key == written("one", "two").key
    assert written("one", "two").key != written("one", "three").key


def test_prompts_stand_in_no_message():
    assert "one" not in repr(Written("questions", ("one",), output_tokens=8))


@pytest.mark.parametrize(
    "changed",
    [
        {"requests_step": 3},
        {"least_requests": 12},
        {"warm_up_requests": 1},
        {"plan": replace(SIX_AT_ONCE.plan, load=ClosedLoop(5))},
    ],
)
def test_whatever_changes_a_block_changes_the_workload(changed):
    assert replace(SIX_AT_ONCE, **changed).key != SIX_AT_ONCE.key


def test_other_words_for_the_same_workload_change_nothing():
    assert replace(SIX_AT_ONCE, about="six streams").key == SIX_AT_ONCE.key


@pytest.mark.parametrize(
    "other",
    [
        EngineSpec("lever", "the engine with the lever", Levers(max_num_seqs=4)),
        EngineSpec("lever", "the engine with the lever", scheme="w8a8"),
        EngineSpec("lever", "the engine with the lever", handicap=Recompute()),
        EngineSpec("lever", "the engine with the lever", handicap=StaticBatches(8)),
    ],
)
def test_another_engine_is_another_row(other):
    case = make_case(rows=(make_row(),))
    assert replace(case, on=other).key(case.rows[0]) != case.key(case.rows[0])


def test_kinds_with_the_same_fields_are_distinguished():
    assert digest(Recompute()) != digest(())
    assert digest(StaticBatches(8)) != digest(StaticBatches(4))

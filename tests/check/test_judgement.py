"""Each classic mistake is named by its own name, and a pair that works is blamed for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts
from phasewise.check.judgement import Mistake, judge
from phasewise.model.worker import Role

PREFILL = EngineFacts(
    "p-0", Role.PREFILL, "m", models=("m",), loaded_from="/models/m", block_tokens=128, cache_dtype="auto",
    has_connector=True,
)  # fmt: skip
DECODE = replace(PREFILL, name="d-0", role=Role.DECODE)
PROVEN = TrialFacts(
    "p-0", "d-0", gave_ticket=True, side_address="127.0.0.1:28100", side_channel=SideChannel.ANSWERS,
    prompt_tokens=300, moved_tokens=300, computed_tokens=0, moved_bytes=7e6, moving_s=0.01, same_text=True,
)  # fmt: skip
REFUSED = replace(
    PROVEN, decode_problem="it answered HTTP 500", moved_tokens=None, moved_bytes=None, same_text=None
)


def named(trial=PROVEN, prefill=PREFILL, decode=DECODE):
    return [it.mistake for it in judge(FleetFacts((prefill, decode), (trial,)))]


def test_a_pair_that_moves_kv_is_blamed_for_nothing():
    assert named() == []


def test_a_pair_that_moves_kv_may_differ_in_what_its_engines_say_of_themselves():
    assert named(decode=replace(DECODE, block_tokens=16)) == []


@pytest.mark.parametrize(
    ("side", "mistake"),
    [
        (SideChannel.NOBODY, Mistake.SIDE_CHANNEL_WRONG),
        (SideChannel.STRANGER, Mistake.SIDE_CHANNEL_WRONG),
        (SideChannel.SILENT, Mistake.SIDE_CHANNEL_BLOCKED),
        (SideChannel.ANSWERS, Mistake.HANDSHAKE_REFUSED),
    ],
)
def test_a_refused_hand_over_is_explained_by_who_answers_at_the_side_channel(side, mistake):
    assert named(replace(REFUSED, side_channel=side)) == [mistake]


def test_a_hand_over_that_never_ends_is_told_from_one_that_is_refused():
    assert named(replace(REFUSED, decode_timed_out=True)) == [Mistake.TRANSFER_HANGS]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"models": ("other",), "wanted_model": "other"}, Mistake.MODEL_DIFFERS),
        ({"loaded_from": "/models/other"}, Mistake.MODEL_DIFFERS),
        ({"block_tokens": 16}, Mistake.BLOCK_SIZE_DIFFERS),
        ({"cache_dtype": "fp8"}, Mistake.CACHE_DTYPE_DIFFERS),
    ],
)
def test_a_refused_hand_over_between_unlike_engines_is_blamed_on_what_differs(change, mistake):
    assert named(REFUSED, decode=replace(DECODE, **change)) == [mistake]


def test_a_prefill_engine_that_gives_no_ticket_has_no_connector():
    without = TrialFacts("p-0", "d-0", prompt_tokens=300)
    assert named(without) == [Mistake.NO_CONNECTOR_PREFILL]


def test_a_decode_engine_without_connector_is_named_though_it_answers_well():
    computed = replace(PROVEN, moved_tokens=0, computed_tokens=300, moved_bytes=None)
    assert named(computed, decode=replace(DECODE, has_connector=False)) == [Mistake.NO_CONNECTOR_DECODE]


def test_an_answer_whose_prompt_was_computed_again_is_a_silent_fall_back():
    computed = replace(PROVEN, moved_tokens=0, computed_tokens=300, moved_bytes=None)
    assert named(computed) == [Mistake.SILENT_FALL_BACK]


def test_a_silent_fall_back_whose_side_channel_is_gone_names_both():
    computed = replace(PROVEN, moved_tokens=0, computed_tokens=300, side_channel=SideChannel.NOBODY)
    assert named(computed) == [Mistake.SILENT_FALL_BACK, Mistake.SIDE_CHANNEL_WRONG]


def test_an_engine_that_counts_nothing_leaves_the_hand_over_unproven():
    assert named(replace(PROVEN, moved_tokens=None)) == [Mistake.NOT_PROVEN]


def test_tokens_that_the_decode_engine_had_already_need_not_move():
    assert named(replace(PROVEN, moved_tokens=44, cached_tokens=256)) == []


def test_a_decode_engine_that_hides_failures_is_a_warning():
    (finding,) = judge(FleetFacts((PREFILL, replace(DECODE, recomputes_on_failure=True)), (PROVEN,)))
    assert finding.mistake is Mistake.FALL_BACK_ALLOWED
    assert finding.is_warning


def test_no_ready_prefill_engine_is_said_beside_the_engine_that_is_silent():
    silent = replace(PREFILL, silence="nobody listens")
    found = [it.mistake for it in judge(FleetFacts((silent, DECODE)))]
    assert found == [Mistake.ENGINE_NOT_READY, Mistake.NO_PREFILL_ENGINE]


def test_engines_without_roles_are_not_asked_to_hand_over():
    assert judge(FleetFacts((replace(PREFILL, role=Role.MIXED),))) == ()


def test_an_engine_that_serves_another_model_than_the_file_says_is_named():
    assert named(prefill=replace(PREFILL, wanted_model="n")) == [Mistake.WRONG_MODEL]


def test_other_traffic_beside_the_trial_takes_no_proof_away():
    assert named(replace(PROVEN, moved_tokens=900, computed_tokens=5_000)) == []


def test_every_mistake_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "check-hand-over.md").read_text()
    assert [it.value for it in Mistake if f"`{it}`" not in page] == []

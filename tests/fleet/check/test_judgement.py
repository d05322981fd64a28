"""Each classic mistake is named by its own name, and a pair that works is blamed for nothing."""

from dataclasses import replace

import pytest

from phasewise.core.worker import Role
from phasewise.fleet.check.facts import EngineFacts, FleetFacts, SideChannel, TrialFacts
from phasewise.fleet.check.judgement import Mistake, judge
from tests.paths import ROOT

PREFILL = EngineFacts(
    "p-0", Role.PREFILL, "m", models=("m",), loaded_from="/models/m", block_tokens=128, cache_dtype="auto",
    has_connector=True,
)  # fmt: skip
DECODE = replace(PREFILL, name="d-0", role=Role.DECODE)
PROVEN = TrialFacts(
    "p-0", "d-0", gave_ticket=True, side_address="127.0.0.1:28100", side_channel=SideChannel.ANSWERS,
    prompt_tokens=300, moved_tokens=300, computed_tokens=0, moved_bytes=7e6, moving_s=0.01, same_text=True,
)  # fmt: skip
REJECTED = replace(
    PROVEN, decode_problem="it answered HTTP 500", moved_tokens=None, moved_bytes=None, same_text=None
)


UNREACHED = replace(REJECTED, side_channel=SideChannel.NOBODY)


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
        (SideChannel.ANSWERS, Mistake.HANDSHAKE_REJECTED),
    ],
)
def test_a_rejected_kv_transfer_is_explained_by_who_answers_at_the_side_channel(side, mistake):
    assert named(replace(REJECTED, side_channel=side)) == [mistake]


def test_a_kv_transfer_that_never_ends_is_distinguished_from_one_that_is_rejected():
    assert named(replace(REJECTED, decode_timed_out=True)) == [Mistake.TRANSFER_HANGS]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"loaded_from": "/models/other"}, Mistake.MODEL_DIFFERS),
        ({"block_tokens": 16}, Mistake.BLOCK_SIZE_DIFFERS),
        ({"cache_dtype": "fp8"}, Mistake.CACHE_DTYPE_DIFFERS),
    ],
)
def test_a_rejected_kv_transfer_between_unlike_engines_is_blamed_on_what_differs(change, mistake):
    assert named(REJECTED, decode=replace(DECODE, **change)) == [mistake]


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


def test_an_engine_that_counts_nothing_leaves_the_kv_transfer_unproven():
    assert named(replace(PROVEN, moved_tokens=None, computed_tokens=None)) == [Mistake.NOT_PROVEN]


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


def test_engines_without_roles_are_not_asked_to_kv_transfer():
    assert judge(FleetFacts((replace(PREFILL, role=Role.MIXED),))) == ()


def test_an_engine_that_serves_another_model_than_the_file_says_is_named():
    other = replace(PREFILL, models=("n",))
    assert named(prefill=other) == [Mistake.WRONG_MODEL]
    assert named(REJECTED, prefill=other) == [Mistake.WRONG_MODEL, Mistake.MODEL_DIFFERS]


def test_other_traffic_takes_no_proof_away_while_the_prompt_cannot_be_among_what_was_computed():
    assert named(replace(PROVEN, moved_tokens=900, computed_tokens=299)) == []


def test_a_prompt_that_may_have_been_computed_is_not_proven_by_what_others_fetched():
    busy = replace(PROVEN, moved_tokens=1_500, computed_tokens=300, first_token_s=0.28, computing_s=0.3)
    assert not busy.proven
    (finding,) = judge(FleetFacts((PREFILL, DECODE), (busy,)))
    assert finding.mistake is Mistake.NOT_PROVEN
    assert "other requests" in finding.words
    assert "280 ms" in finding.words


def test_a_side_channel_that_nobody_reaches_is_named_though_models_lie_at_different_paths():
    found = named(UNREACHED, decode=replace(DECODE, loaded_from="org/m"))
    assert found == [Mistake.SIDE_CHANNEL_WRONG, Mistake.MODEL_DIFFERS]


@pytest.mark.parametrize("types", [("auto", "bfloat16"), ("float16", "auto")])
def test_the_type_of_the_model_is_no_difference_to_its_name(types):
    mine, theirs = (replace(it, cache_dtype=kind) for it, kind in zip((PREFILL, DECODE), types, strict=True))
    assert named(UNREACHED, mine, theirs) == [Mistake.SIDE_CHANNEL_WRONG]
    assert named(REJECTED, mine, theirs) == [Mistake.HANDSHAKE_REJECTED]


def test_a_prefill_engine_without_connector_is_named_before_what_the_two_differ_in():
    without = TrialFacts("p-0", "d-0", prompt_tokens=300)
    found = named(without, decode=replace(DECODE, block_tokens=16))
    assert found == [Mistake.NO_CONNECTOR_PREFILL, Mistake.BLOCK_SIZE_DIFFERS]


@pytest.mark.parametrize("side", [SideChannel.NOBODY, SideChannel.SILENT, SideChannel.STRANGER])
def test_engines_that_have_met_are_warned_of_a_side_channel_out_of_reach(side):
    (finding,) = judge(FleetFacts((PREFILL, DECODE), (replace(PROVEN, side_channel=side),)))
    assert finding.mistake is Mistake.SIDE_CHANNEL_OUT_OF_REACH
    assert finding.is_warning
    assert "127.0.0.1:28100" in finding.words


def test_a_pair_that_there_was_no_time_for_is_never_taken_for_proven():
    untried = replace(PROVEN, ended=False)
    assert not untried.proven
    (finding,) = judge(FleetFacts((PREFILL, DECODE), (untried,)))
    assert finding.mistake is Mistake.NOT_TRIED
    assert not finding.is_warning
    assert "p-0 -> d-0" in finding.words


def test_sides_of_different_models_are_no_pair():
    other = replace(DECODE, wanted_model="n", models=("n",))
    found = judge(FleetFacts((PREFILL, other)))
    assert [(it.mistake, it.where) for it in found] == [
        (Mistake.NO_PAIR, "model m"),
        (Mistake.NO_PAIR, "model n"),
    ]


def test_every_mistake_is_documented():
    page = (ROOT / "docs" / "how-to" / "check-kv-transfer.md").read_text()
    assert [it.value for it in Mistake if f"`{it}`" not in page] == []

"""A setup comes from the fleet file first, from the window next, and changed one lever at a time."""

from dataclasses import replace

import pytest

from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.analysis.engine_load import Drafts, EngineLoad, EngineSurroundings, StepShape
from phasewise.diagnosis.predict.setup import Unpredictable, changed, setup_of
from phasewise.diagnosis.predict.traffic import RecordedTraffic
from phasewise.fleet.config import Levers
from tests.diagnosis.predict.traffic_builders import SETUP, every

TRAFFIC = RecordedTraffic(every(1.0, 10), {})


def engine_load(capped_share):
    return EngineLoad(2.0, 3, 4.0, 6, 0.3, 0.8, 0.0, capped_share, 0.0)


def steps(budget):
    return StepShape(10, 0.9, 100.0, budget, 0.05, 0.05, 1.0)


def test_a_window_that_shows_no_cap_leaves_the_defaults():
    shape = setup_of(TRAFFIC, [EngineSurroundings("e0", 10, engine_load=engine_load(0.0))]).shape
    assert (shape.max_num_seqs, shape.max_num_batched_tokens, shape.prefix_cache) == (256, 2048, True)


def test_a_cap_and_a_budget_show_in_the_window():
    seen = EngineSurroundings("e0", 10, engine_load=engine_load(1.0), steps=steps(512), prefix_cache_on=False)
    shape = setup_of(TRAFFIC, [seen]).shape
    assert (shape.max_num_seqs, shape.max_num_batched_tokens, shape.prefix_cache) == (3, 512, False)


def test_a_fleet_file_knows_better_than_the_window():
    seen = EngineSurroundings("e0", 10, engine_load=engine_load(1.0), steps=steps(512), prefix_cache_on=False)
    levers = Levers(
        max_num_seqs=8, max_num_batched_tokens=1024, prefix_cache=True, kv_cache_memory_bytes="1GiB"
    )
    setup = setup_of(TRAFFIC, [seen], levers)
    assert (setup.shape.max_num_seqs, setup.shape.max_num_batched_tokens) == (8, 1024)
    assert setup.shape.prefix_cache
    assert setup.kv_bytes == 2**30


def test_a_cache_of_known_size_keeps_one_block_for_the_engine():
    seen = EngineSurroundings("e0", 10, kv_tokens=1280, block_tokens=128)
    assert setup_of(TRAFFIC, [seen]).shape.total_blocks == 9


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (LeverChange("max_num_batched_tokens", 128), "max_num_batched_tokens", 128),
        (LeverChange("max_num_batched_tokens", 128), "max_num_seqs", 128),
        (LeverChange("max_num_seqs", 4), "max_num_seqs", 4),
        (LeverChange("max_num_seqs", 4000), "max_num_batched_tokens", 4000),
        (LeverChange("prefix_cache", True), "prefix_cache", True),
        (LeverChange("kv_cache_memory_bytes", None, times=2.0), "total_blocks", 4096),
    ],
)
def test_a_lever_changes_its_part_of_the_shape(change, field, value):
    assert getattr(changed(SETUP, change).shape, field) == value


def test_a_larger_chunk_lifts_a_cap_that_was_only_the_budgets():
    larger = LeverChange("max_num_batched_tokens", 1024)
    unset = setup_of(TRAFFIC, [], Levers(max_num_batched_tokens=64))
    assert unset.shape.max_num_seqs == 64
    assert changed(unset, larger).shape.max_num_seqs == 256
    full = EngineSurroundings("e0", 10, engine_load=engine_load(1.0), steps=steps(3))
    assert changed(setup_of(TRAFFIC, [full]), larger).shape.max_num_seqs == 256
    reported = setup_of(TRAFFIC, [], Levers(max_num_batched_tokens=64, max_num_seqs=8))
    assert changed(reported, larger).shape.max_num_seqs == 8
    capped = changed(unset, LeverChange("max_num_seqs", 4))
    assert changed(capped, larger).shape.max_num_seqs == 4


def test_engines_that_guess_are_replayed_only_where_steps_report_what_guesses_bring():
    silent = EngineSurroundings("e0", 10, drafts=Drafts(10, 50, 30))
    found = changed(setup_of(TRAFFIC, [silent]), LeverChange("max_num_seqs", 4))
    assert isinstance(found, Unpredictable)
    assert "no step record" in found.reason
    reporting = replace(silent, name="e1", steps=replace(steps(None), tokens_per_stream_step=6.0))
    setup = setup_of(TRAFFIC, [silent, reporting])
    assert [reading.tokens for reading in setup.drafts] == [40]
    assert not isinstance(changed(setup, LeverChange("speculation", None)), Unpredictable)


def test_replicas_add_engines():
    assert changed(SETUP, LeverChange("replicas", 3)).engines == 3


@pytest.mark.parametrize(
    "change",
    [
        LeverChange("kv_dtype", "fp8"),
        LeverChange("speculation", 5),
        LeverChange("kv_cache_memory_bytes", "2GiB"),
    ],
)
def test_what_costs_or_the_window_do_not_report_is_not_guessed(change):
    assert isinstance(changed(SETUP, change), Unpredictable)


def test_a_size_in_bytes_is_taken_by_its_ratio_to_the_one_before():
    setup = setup_of(TRAFFIC, [], Levers(kv_cache_memory_bytes="512MiB"))
    after = changed(setup, LeverChange("kv_cache_memory_bytes", "1GiB"))
    assert after.shape.total_blocks == 2 * setup.shape.total_blocks

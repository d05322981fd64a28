from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.errors import MeasurementError
from phasewise.experiments.lever_runs.engine_facts import EngineSizes, named_backend
from phasewise.experiments.lever_runs.paging import count_waste
from phasewise.loadgen.engine_watch import EngineRecord
from phasewise.loadgen.run import BenchRun
from phasewise.loadgen.target import Target
from phasewise.loadgen.workload.arrivals import ClosedLoop
from phasewise.loadgen.workload.plan import Plan
from tests.builders import EPOCH_S, make_step, make_timeline

FACTS = EngineSizes(kv_tokens=12_800, block_tokens=128, context_tokens=8192)


def make_run(timelines, steps):
    plan = Plan((), ClosedLoop(2), None)
    record = EngineRecord((), tuple(steps))
    return BenchRun(Target("http://e", "m"), plan, tuple(timelines), 10.0, engine=record)


def using(seq, ended_s, share):
    return replace(make_step(seq, ended_s), kv_usage=share)


def decoding(start_s=0.0, prompt=200):
    """First token after 1 s, last of 21 after 3 s."""
    times_s = tuple(1 + 0.1 * place for place in range(21))
    return make_timeline(
        times_s, started_unix_s=EPOCH_S + start_s, ended_s=3.0, prompt_tokens=prompt, output_tokens=21
    )


def test_blocks_that_are_held_are_set_against_tokens_that_are_used():
    # Half way two requests hold 200 + 10.5 tokens each, in two blocks of 128 each.
    run = make_run([decoding(), decoding()], [using(1, 2.0, 4 / 100)])
    found = count_waste(run, FACTS, 5.0)
    assert found.samples == 1
    assert found.used_tokens == pytest.approx(210.5)
    assert found.paged_tokens == 256
    assert found.paged_waste == pytest.approx(1 - 210.5 / 256)
    assert found.reserved_waste == pytest.approx(1 - 210.5 / 8192)
    assert (found.fits_paged, found.fits_reserved) == (50, 1)


def test_a_sample_that_seems_to_use_more_than_is_held_counts_as_full():
    # Two requests use 421 tokens, but one reading has three blocks: the engine's clock runs apart.
    run = make_run([decoding(), decoding()], [using(1, 2.0, 4 / 100), using(2, 2.0, 3 / 100)])
    found = count_waste(run, FACTS, 5.0)
    assert found.samples == 2
    assert found.paged_waste_range == (0.0, pytest.approx(1 - 210.5 / 256))
    assert found.used_tokens == pytest.approx((210.5 + 192) / 2)


def test_moments_at_which_a_prompt_is_still_prefilled_are_left_out():
    newcomer = decoding(start_s=1.8)
    steps = [
        using(1, 1.5, 0.02),
        using(2, 2.0, 0.04),
        using(3, 9.0, 0),
    ]
    assert count_waste(make_run([decoding(), newcomer], steps), FACTS, 0.0).samples == 1


def test_without_a_sample_there_is_no_figure():
    with pytest.raises(MeasurementError, match="no sample"):
        count_waste(make_run([decoding()], []), FACTS, 0.0)
    with pytest.raises(MeasurementError, match="does not report"):
        count_waste(make_run([decoding()], []), EngineSizes(), 0.0)


def test_the_attention_back_end_is_the_one_the_log_names(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(
        "Using max model len 8192\nUsing FLASH_ATTN attention backend out of potential backends: (...)\n"
    )
    assert named_backend(str(log)) == "FLASH_ATTN"
    log.write_text("Using LBHNC KV cache layout.\n")
    assert named_backend(str(log)) == ""
    assert named_backend(str(tmp_path / "none.log")) == ""

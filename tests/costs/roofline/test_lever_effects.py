"""Levers move the phase that physics says they move, and only in the regime in which it says so."""

from dataclasses import replace

import pytest

from phasewise.costs.roofline.capacity import UniformTraffic
from phasewise.costs.roofline.lever_effects import LEVERS, expected_tokens, lever_effects
from phasewise.costs.roofline.precision import Arithmetic
from tests.costs.deployments import deploy


def effects(batch=128, traffic=UniformTraffic(2000, 300), **where):  # noqa: B008
    return {effect.lever: effect for effect in lever_effects(deploy(**where), traffic, batch)}


def test_eight_bit_arithmetic_helps_both_phases_and_four_bit_weights_only_decode():
    found = effects()
    assert found["weights w8a8"].ttft < 0.6
    assert found["weights w8a8"].tpot_alone < 0.6
    assert found["weights w4a16"].ttft == pytest.approx(1.0, abs=0.01)
    assert found["weights w4a16"].tpot_alone < 0.4


def test_short_prompts_are_bound_by_the_weights_so_that_four_bits_help_there_too():
    assert effects(traffic=UniformTraffic(64, 300))["weights w4a16"].ttft < 0.4


def test_without_eight_bit_units_w8a8_saves_reads_only():
    whole = deploy()
    peaks = {Arithmetic.SIXTEEN_BIT: whole.accelerator.peak_flops[Arithmetic.SIXTEEN_BIT]}
    plain = replace(whole, accelerator=replace(whole.accelerator, peak_flops=peaks))
    w8a8 = next(
        effect for effect in lever_effects(plain, UniformTraffic(2000, 300), 1) if "w8a8" in effect.lever
    )
    assert w8a8.ttft == pytest.approx(1.0, abs=0.01)
    assert w8a8.tpot_alone < 0.6


def test_a_small_kv_cache_makes_room_always_and_speed_only_in_large_batches():
    found = effects()["KV cache fp8"]
    assert found.kv_tokens == pytest.approx(2.0, rel=1e-3)
    assert found.tpot_alone > 0.98
    assert found.tpot_batch < 0.75


def test_a_cached_prefix_leaves_decode_alone():
    found = effects()["half the prompt cached"]
    assert found.ttft == pytest.approx(0.5, abs=0.03)
    assert (found.tpot_alone, found.tpot_batch) == (1.0, 1.0)


def test_levers_start_from_what_is_cached_already():
    cached = UniformTraffic(2000, 300, cached_tokens=1500)
    assert "half the prompt cached" not in effects(traffic=cached)
    chunks = effects(traffic=cached)["prompt chunks of 512"]
    assert chunks.ttft == 1.0


def test_speculation_helps_a_stream_alone_and_hurts_a_full_batch_that_guesses_badly():
    found = effects(batch=256)
    good, bad = (found[f"speculation, 4 drafts, {right}% right"] for right in (80, 20))
    assert good.tpot_alone < 0.35
    assert bad.tpot_alone < 1 < bad.tpot_batch
    assert good.ttft == 1.0


def test_small_chunks_do_not_make_a_prompt_faster():
    assert effects(traffic=UniformTraffic(20_000, 300))["prompt chunks of 512"].ttft > 1.0


def test_more_devices_help_little_where_the_link_is_slow():
    assert effects(gpu="H100")["twice the devices"].ttft < 0.7
    assert effects(gpu="L40S")["twice the devices"].ttft > 0.8


def test_levers_that_are_there_already_or_cannot_be_had_are_left_out():
    assert len(effects()) == len(LEVERS)
    assert set(LEVERS) - set(effects(name="smollm2-135m")) == {"twice the devices"}
    pulled = effects(weights="fp8", kv_element_bytes=1.0, chunk_tokens=512)
    left_out = {"weights w8a8", "weights w4a16", "KV cache fp8", "prompt chunks of 512"}
    assert set(LEVERS) - set(pulled) == left_out


def test_twice_the_devices_stay_within_one_host():
    assert "twice the devices" in effects(name="llama-3-70b", gpus=4)
    assert "twice the devices" not in effects(name="llama-3-70b", gpus=8)


@pytest.mark.parametrize(("acceptance", "tokens"), [(0.0, 1.0), (1.0, 5.0), (0.5, 1.9375)])
def test_a_step_gives_the_right_drafts_and_one_more(acceptance, tokens):
    assert expected_tokens(4, acceptance) == tokens

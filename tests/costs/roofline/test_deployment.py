"""The physics of a step: worked examples, and what must hold for every shape and size."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.core.errors import ConfigError
from phasewise.costs.fit.step import StepBound
from phasewise.costs.roofline.accelerators import ACCELERATORS, Assumptions, served_by_default
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes
from tests.costs.deployments import NAMES, deploy


def test_a_decode_of_one_has_an_intensity_of_about_one():
    assert deploy().demand(decodes(1, 0)).intensity == pytest.approx(1.0, rel=0.01)


def test_a_batch_reads_the_weights_once_for_all_its_tokens():
    alone, many = deploy().demand(decodes(1, 0)), deploy().demand(decodes(64, 0))
    assert many.weight_bytes == alone.weight_bytes
    assert many.flops == pytest.approx(64 * alone.flops)


def test_attention_work_quadruples_when_a_long_prompt_doubles():
    once, twice = deploy().demand(PrefillChunk(65_536)), deploy().demand(PrefillChunk(131_072))
    assert twice.attention_flops == pytest.approx(4 * once.attention_flops, rel=1e-4)
    assert twice.block_flops == 2 * once.block_flops


def test_attention_counts_the_causal_half():
    demand = deploy().demand(PrefillChunk(1000))
    whole = 32 * 1000 * 1000 * 4 * 4096
    assert demand.attention_flops == pytest.approx(whole / 2, rel=0.002)


def test_the_output_head_is_computed_for_sampled_tokens_only():
    prompt = deploy().demand(PrefillChunk(1000))
    assert prompt.head_flops == 2 * 128_256 * 4096
    assert prompt.block_flops == 2 * 1000 * deploy().architecture.active_block_parameters


def test_chunks_of_a_prompt_do_the_work_of_the_whole():
    engine = deploy("gemma-2-9b", chunk_tokens=1000)
    chunks = engine.prefill_chunks(7777)
    assert sum(chunk.sampled_tokens for chunk in chunks) == 1
    parts = [engine.demand(chunk) for chunk in chunks]
    whole = engine.demand(PrefillChunk(7777))
    assert sum(part.attention_flops for part in parts) == whole.attention_flops
    assert sum(part.flops for part in parts) == pytest.approx(whole.flops)


def test_a_step_of_a_mixture_reads_the_experts_it_needs():
    engine = deploy("mixtral-8x7b", gpus=8)
    alone, many = engine.demand(decodes(1, 0)), engine.demand(decodes(256, 0))
    assert alone.weight_bytes == pytest.approx(2 * (12.88e9 - 32_000 * 4096), rel=0.01)
    assert many.weight_bytes == pytest.approx(2 * (46.7e9 - 32_000 * 4096), rel=0.01)


def test_a_latent_decode_works_on_the_latent():
    engine = deploy("deepseek-v3", gpus=16)
    context = 10_000
    pairs = 61 * (context + 1)
    assert engine.demand(decodes(1, context)).attention_flops == pairs * 2 * 128 * (2 * 512 + 64)
    assert engine.demand(PrefillChunk(2)).attention_flops == 61 * 3 * 2 * 128 * (192 + 128)


def test_checking_drafts_works_on_the_latent_like_any_decode():
    engine = deploy("deepseek-v3", gpus=16)
    checked = engine.demand(PrefillChunk(5, 1000, sampled_tokens=5, decoding=True)).attention_flops
    assert checked == 61 * (5 * 1000 + 15) * 2 * 128 * (2 * 512 + 64)


def test_a_later_chunk_of_a_prompt_expands_the_latents_before_it():
    engine = deploy("deepseek-v3", gpus=16)
    pairs = (2 * 1000 + 3) * 2 * 128 * (192 + 128)
    expanded = 2 * 1000 * 512 * 128 * (128 + 128)
    assert engine.demand(PrefillChunk(2, 1000)).attention_flops == 61 * (pairs + expanded)


def test_a_fused_attention_never_writes_the_scores():
    assert deploy().demand(PrefillChunk(4096)).score_bytes == 32 * 32 * 4096 * 4096 * 2


def test_the_ridge_point_is_where_a_batch_of_16_bit_weights_stops_being_free():
    engine = deploy(assumptions=Assumptions(compute=1.0, bandwidth=1.0))
    assert engine.rates.ridge == pytest.approx(989.4e12 / 3.35e12)
    assert engine.compute_bound_batch() == pytest.approx(295, abs=2)
    assert engine.step(decodes(400, 0)).bound is StepBound.COMPUTE
    assert engine.step(decodes(8, 0)).bound is StepBound.WEIGHTS


def test_with_long_contexts_decode_never_becomes_compute_bound():
    assert deploy("llama-13b-multi-head").compute_bound_batch_with_kv(4096) is None
    assert deploy().compute_bound_batch_with_kv(16) == pytest.approx(deploy().compute_bound_batch(), rel=0.1)


def test_kv_reads_overtake_weights_where_the_batch_holds_as_many_bytes():
    engine = deploy()
    batch = engine.kv_equals_weights_batch(8192)
    assert batch == pytest.approx(engine.demand(decodes(1, 0)).weight_bytes / engine.kv_bytes(8192), abs=1)


def test_attention_overtakes_the_weights_at_parameters_over_layers_times_width():
    blocks = deploy().architecture.active_block_parameters
    assert deploy().quadratic_from_tokens() == pytest.approx(blocks / (32 * 4096), rel=0.001)


def test_tensor_parallelism_divides_kv_heads_until_none_are_left_to_divide():
    assert deploy("llama-3-70b", gpus=8).kv_copies == 1
    assert deploy("llama-3-70b", gpus=16).kv_copies == 2
    assert deploy("deepseek-v3", gpus=8).kv_copies == 8


def test_a_70b_model_does_not_fit_on_one_device():
    assert not deploy("llama-3-70b").fits
    assert deploy("llama-3-70b").kv_capacity_tokens == 0
    assert deploy("llama-3-70b", gpus=4).fits


def test_heads_that_cannot_be_divided_are_rejected():
    with pytest.raises(ConfigError, match="64 attention heads"):
        deploy("llama-3-70b", gpus=3)


def test_kv_heads_that_cannot_be_divided_or_copied_evenly_are_rejected():
    wide = replace(deploy().architecture, groups=_with_heads(24, 6))
    assert Deployment(wide, ACCELERATORS["H100"], 12).kv_copies == 2
    with pytest.raises(ConfigError, match="24 attention heads, 6 with") as rejected:
        Deployment(wide, ACCELERATORS["H100"], 4)
    assert rejected.value.hint == "vLLM takes 1, 2, 3, 6, 12, 24 of them"


def _with_heads(heads, kv_heads):
    (group,) = deploy().architecture.groups
    return (replace(group, attention=replace(group.attention, heads=heads, kv_heads=kv_heads)),)


def test_fewer_devices_of_a_mesh_use_fewer_of_its_links():
    mesh, switched = ACCELERATORS["MI300X"], ACCELERATORS["H100"]
    assert mesh.link_among(2) == pytest.approx(mesh.link_bytes_per_s / 7)
    assert mesh.link_among(8) == mesh.link_among(16) == mesh.link_bytes_per_s
    assert switched.link_among(2) == switched.link_bytes_per_s


@pytest.mark.parametrize("gpu", ["H100", "L40S", "MI300X"])
def test_what_vllm_takes_by_default_follows_from_the_memory(gpu):
    device = ACCELERATORS[gpu]
    assert served_by_default(device.memory_bytes) == (device.chunk_tokens, device.max_num_seqs)


def test_vllm_takes_small_steps_on_an_a100_though_its_memory_is_large():
    assert deploy(gpu="A100").step_tokens == 2048
    assert deploy(gpu="A100", chunk_tokens=4096).step_tokens == 4096


def test_what_binds_a_prompt_is_judged_over_all_its_chunks():
    engine = deploy()
    first, *_, last = (engine.step(chunk).bound for chunk in engine.prefill_chunks(32_768))
    assert (first, last) == (StepBound.COMPUTE, StepBound.ATTENTION)
    assert engine.prefill(32_768).bound is StepBound.COMPUTE


def test_eight_bit_arithmetic_speeds_up_a_long_prefill_and_four_bit_weights_do_not():
    plain, w8a8, w4a16 = deploy(), deploy(weights="w8a8"), deploy(weights="w4a16")
    assert plain.ttft_s(8000) / w8a8.ttft_s(8000) > 1.7
    assert plain.ttft_s(8000) / w4a16.ttft_s(8000) == pytest.approx(1.0, rel=0.01)
    assert plain.tpot_s(1, 100) / w4a16.tpot_s(1, 100) > 2


def test_a_device_without_units_for_a_number_falls_back_to_16_bit():
    assert deploy(gpu="A100", weights="fp8").ttft_s(8000) == pytest.approx(
        deploy(gpu="A100").ttft_s(8000), rel=0.01
    )


def test_a_cached_prefix_saves_prefill_and_no_decode_step():
    engine = deploy()
    assert engine.ttft_s(4000, cached_tokens=3900) < 0.2 * engine.ttft_s(4000)
    assert engine.ttft_s(4000, cached_tokens=4000) == engine.step_seconds(PrefillChunk(1, 3999))


@given(
    st.sampled_from(NAMES),
    st.integers(1, 20_000),
    st.integers(1, 2_000),
    st.integers(1, 300),
    st.integers(0, 20_000),
)
@settings(max_examples=60, deadline=None)
def test_more_work_never_takes_less_time(name, tokens, more_tokens, batch, context):
    engine = deploy(name, gpus=8)
    assert engine.ttft_s(tokens + more_tokens) >= engine.ttft_s(tokens)
    assert engine.tpot_s(batch + 1, context) >= engine.tpot_s(batch, context)
    assert engine.tpot_s(batch, context + 1) >= engine.tpot_s(batch, context)


@given(st.sampled_from(NAMES), st.integers(1, 50_000), st.integers(1, 50_000))
@settings(max_examples=60, deadline=None)
def test_longer_requests_fit_no_more_often(name, context, more):
    engine = deploy(name, gpus=8)
    assert engine.requests_that_fit(context + more) <= engine.requests_that_fit(context)


@given(st.sampled_from(NAMES), st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_pairs_in_two_chunks_are_pairs_in_one(name, first, context, second):
    for group in deploy(name, gpus=8).architecture.groups:
        pairs = group.attention.pairs
        assert pairs(first + second, context) == pairs(first, context) + pairs(second, context + first)


@given(st.sampled_from(NAMES), st.integers(1, 4000), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_better_devices_are_never_slower(name, tokens, batch):
    slow = deploy(name, gpus=8, assumptions=Assumptions(compute=0.5, bandwidth=0.7))
    fast = deploy(name, gpus=8, assumptions=Assumptions(compute=0.6, bandwidth=0.8))
    assert fast.ttft_s(tokens) <= slow.ttft_s(tokens)
    assert fast.tpot_s(batch, tokens) <= slow.tpot_s(batch, tokens)


def test_every_figure_of_a_device_has_a_source():
    figures = {"peak_flops", "bandwidth_bytes_per_s", "memory_bytes", "link_bytes_per_s", "price_per_hour"}
    for accelerator in ACCELERATORS.values():
        assert accelerator.sources.keys() == figures
        assert "assumption" in accelerator.sources["price_per_hour"]


@pytest.mark.parametrize(
    "given",
    [
        {"speed": 1.0},
        {"compute": 1.2},
        {"compute": 0.0},
        {"overhead_ms": -1.0},
        {"overhead_ms": nan},
        {"reserve_gb": inf},
    ],
)
def test_impossible_assumptions_are_rejected(given):
    with pytest.raises(ConfigError):
        Assumptions().with_values(given)

"""Configurations become shapes whose counts are those that the models' makers publish."""

import pytest

from phasewise.core.errors import ConfigError
from phasewise.costs.roofline.architecture import AttentionKind
from phasewise.costs.roofline.model_config import architecture_of
from phasewise.costs.roofline.precision import WEIGHT_SCHEMES
from tests.costs.deployments import example_config

LLAMA_8B = example_config("llama-3-8b")
QWEN_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN_MOE_A3B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN2_MOE_A14B = {
    "model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 151936, "num_experts": 64, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GEMMA_3 = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152},
    "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    },
}  # fmt: skip


def example(name):
    return architecture_of(example_config(name))


@pytest.mark.parametrize(
    ("architecture", "published"),
    [
        (example("llama-3-8b"), 8.03e9),
        (example("llama-3-70b"), 70.6e9),
        (example("mixtral-8x7b"), 46.7e9),
        (example("deepseek-v3"), 671e9),
        (example("gemma-2-9b"), 9.24e9),
        (example("llama-13b-multi-head"), 13.0e9),
        (architecture_of(QWEN_7B), 7.6e9),
        (architecture_of(QWEN_MOE_A3B), 30.5e9),
        (architecture_of(QWEN2_MOE_A14B), 57.4e9),
        (architecture_of(GPT_OSS_120B), 116.8e9),
        (architecture_of(GEMMA_3), 27.0e9),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_parameters_are_those_that_are_published(architecture, published):
    assert architecture.parameters == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("architecture", "published", "tolerance"),
    [
        (example("mixtral-8x7b"), 12.9e9, 0.01),
        (architecture_of(QWEN_MOE_A3B), 3.3e9, 0.02),
        (architecture_of(QWEN2_MOE_A14B), 14e9, 0.03),
        (example("deepseek-v3"), 37e9, 0.02),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_active_parameters_are_those_that_are_published_as_far_as_they_are_rounded(
    architecture, published, tolerance
):
    assert architecture.active_parameters == pytest.approx(published, rel=tolerance)


def test_llama_3_8b_is_counted_to_the_last_parameter():
    assert example("llama-3-8b").parameters == 8_030_261_248


def test_a_13b_multi_head_model_keeps_800_kb_per_token_and_3_3_gb_at_4k():
    model = example("llama-13b-multi-head")
    assert model.attention.kind is AttentionKind.MULTI_HEAD
    assert model.kv_bytes(1) == 819_200
    assert model.kv_bytes(4096) == pytest.approx(3.3e9, rel=0.02)


def test_the_demo_model_keeps_23_kb_per_token():
    model = example("smollm2-135m")
    assert model.parameters == 134_515_008
    assert model.kv_bytes(1) == 2 * 30 * 3 * 64 * 2 == 23_040


def test_sharing_keys_and_values_shrinks_the_cache_by_the_heads_that_share():
    assert example("llama-3-70b").kv_shrink == 8
    assert architecture_of(LLAMA_8B | {"num_key_value_heads": 1}).attention.kind is AttentionKind.MULTI_QUERY


def test_a_latent_cache_is_one_vector_per_layer_and_token():
    model = example("deepseek-v3")
    assert model.attention.kind is AttentionKind.LATENT
    assert model.kv_bytes(1) == 61 * (512 + 64) * 2
    assert model.kv_shrink == pytest.approx(128 * (192 + 128) / 576)


def test_layers_with_a_window_stop_growing_at_it():
    model = example("gemma-2-9b")
    assert sorted(str(group.attention.window) for group in model.groups) == ["4096", "None"]
    assert model.kv_bytes(8192) == 1.5 * model.kv_bytes(4096)


@pytest.mark.parametrize(
    ("config", "windowed"),
    [
        (LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096}, 32),
        (LLAMA_8B | {"model_type": "mistral", "sliding_window": None}, 0),
        (QWEN_7B, 0),
        (QWEN_7B | {"use_sliding_window": True, "max_window_layers": 21}, 7),
        (GPT_OSS_120B, 18),
        (GEMMA_3, 52),
    ],
)
def test_windows_are_in_the_layers_that_have_them(config, windowed):
    groups = architecture_of(config).groups
    assert sum(group.layers for group in groups if group.attention.window) == windowed


def test_the_first_layers_of_a_mixture_are_dense_where_it_says_so():
    dense = [group for group in example("deepseek-v3").groups if group.feed_forward.experts is None]
    assert [group.layers for group in dense] == [3]


def test_layers_that_are_listed_as_dense_are_dense():
    kinds = ["dense"] * 4 + ["sparse"] * 28
    groups = architecture_of(example_config("mixtral-8x7b") | {"mlp_layer_types": kinds}).groups
    assert [group.layers for group in groups if group.feed_forward.experts is None] == [4]


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_missing_key_is_named(key):
    with pytest.raises(ConfigError, match=key):
        architecture_of({name: value for name, value in LLAMA_8B.items() if name != key})


@pytest.mark.parametrize("family", ["gemma3_text", "gemma2", "gemma"])
def test_a_gemma_without_head_dim_has_the_family_s_256(family):
    config = GEMMA_3["text_config"] | {"model_type": family, "dtype": "bfloat16"}
    unsaid = {name: value for name, value in config.items() if name != "head_dim"}
    assert architecture_of(unsaid).attention.head_dim == 256
    assert architecture_of(config).attention.head_dim == 128


@pytest.mark.parametrize("family", ["minicpm3", "llama"])
def test_latents_that_vllm_does_not_keep_are_rejected(family):
    with pytest.raises(ConfigError, match="keep its latents"):
        architecture_of(example_config("deepseek-v3") | {"model_type": family})


def test_kv_heads_are_never_guessed_for_families_whose_default_is_not_multi_head():
    config = {name: value for name, value in LLAMA_8B.items() if name != "num_key_value_heads"}
    assert architecture_of(config).attention.kv_heads == 32
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        architecture_of(config | {"model_type": "mistral"})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "cross attention"),
        ({"attention_chunk_size": 8192}, "chunks"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1"),
        ({"quantization_config": {"quant_method": "quip"}}, "quip"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_key_value_heads": 5}, "not a multiple"),
        ({"num_local_experts": 4, "num_experts_per_tok": 8}, "more than the 4"),
        ({"moe_num_primary": 8, "moe_top_k": 2}, "moe_num_primary, moe_top_k"),
        ({"num_experts_in_total": 8}, "num_experts_in_total"),
        ({"torch_dtype": "float4"}, "float4"),
        ({"model_type": None}, "model_type is 'missing'"),
        ({"model_type": "llamoid"}, "llamoid"),
    ],
)
def test_what_would_be_counted_wrong_is_rejected(extra, named):
    with pytest.raises(ConfigError, match=named):
        architecture_of(LLAMA_8B | extra)


def test_what_is_left_out_is_said():
    assert any("vision" in note for note in architecture_of(GEMMA_3).notes)
    assert any("multi-token" in note for note in example("deepseek-v3").notes)
    assert any("float32" in note for note in architecture_of(LLAMA_8B | {"torch_dtype": "float32"}).notes)


@pytest.mark.parametrize(
    ("quantization", "bits", "arithmetic"),
    [
        ({"quant_method": "fp8"}, 8, "fp8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.125, "16 bit"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4.25, "16 bit"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}},
            8, "int8",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "weights": {"num_bits": 4, "type": "int", "group_size": 32}, "input_activations": None}}},
            4.5, "16 bit",
        ),
    ],
)  # fmt: skip
def test_quantized_checkpoints_tell_bytes_and_arithmetic(quantization, bits, arithmetic):
    precision = architecture_of(LLAMA_8B | {"quantization_config": quantization}).precision
    assert (precision.dense_bytes * 8, precision.arithmetic) == (bits, arithmetic)


def test_only_the_experts_of_an_mxfp4_checkpoint_are_small():
    assert architecture_of(GPT_OSS_120B).weight_bytes == pytest.approx(65e9, rel=0.01)


def test_a_given_precision_replaces_what_the_checkpoint_says():
    config = LLAMA_8B | {"quantization_config": {"quant_method": "quip"}}
    assert architecture_of(config, WEIGHT_SCHEMES["w4a16"]).weight_bytes == pytest.approx(5.7e9, rel=0.02)

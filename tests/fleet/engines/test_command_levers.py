"""Every lever of the fleet file makes the flag that vLLM knows."""

import json

import pytest

from phasewise.fleet.config import Levers, Speculation
from phasewise.fleet.engines.command import lever_arguments


def test_levers_left_out_set_nothing():
    assert lever_arguments(Levers()) == []


@pytest.mark.parametrize(
    ("levers", "arguments"),
    [
        (Levers(prefix_cache=True), ["--enable-prefix-caching"]),
        (Levers(prefix_cache=False), ["--no-enable-prefix-caching"]),
        (Levers(max_num_batched_tokens=512), ["--max-num-batched-tokens", "512"]),
        (Levers(max_num_seqs=8), ["--max-num-seqs", "8"]),
        (Levers(kv_cache_memory_bytes="1.5GiB"), ["--kv-cache-memory-bytes", str(3 * 2**29)]),
        (Levers(kv_dtype="fp8"), ["--kv-cache-dtype", "fp8"]),
        (Levers(max_model_len=4096), ["--max-model-len", "4096"]),
        (Levers(weight_quantization="fp8"), ["--quantization", "fp8"]),
        (Levers(attention_backend="FLASHINFER"), ["--attention-backend", "FLASHINFER"]),
    ],
)
def test_a_lever_becomes_its_flag(levers, arguments):
    assert lever_arguments(levers) == arguments


def test_speculation_is_one_json_argument():
    flag, value = lever_arguments(Levers(speculation=Speculation(tokens=3, lookup_max=2)))
    assert flag == "--speculative-config"
    assert json.loads(value) == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}


def test_flags_keep_the_order_of_the_phases():
    levers = Levers(kv_dtype="fp8", max_num_seqs=4, prefix_cache=True)
    assert lever_arguments(levers) == [
        "--enable-prefix-caching",
        *("--max-num-seqs", "4"),
        *("--kv-cache-dtype", "fp8"),
    ]

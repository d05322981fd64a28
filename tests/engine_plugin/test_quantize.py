"""Quantized weights are within half a step of their originals, to a reader of the bare file format."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.real_engine import ROOT

pytestmark = pytest.mark.real

SCRIPT = ROOT / "engine_plugin" / "phasewise_engine_plugin" / "quantize.py"
HIDDEN, INTERMEDIATE, GROUP = 64, 128, 32
MATRICES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
DTYPES = {"I8": np.int8, "I32": np.int32, "I64": np.int64, "F32": np.float32, "BF16": np.uint16}


def read_safetensors(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        values = np.frombuffer(data[start:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = widened(values) if entry["dtype"] == "BF16" else values
    return tensors


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors):
    """Write numbers as bfloat16, cut off rather than rounded."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": offsets}
        data += raw
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A two-layer model of random weights, with outliers, in two files."""
    folder, rng = tmp_path_factory.mktemp("tiny"), np.random.default_rng(5)
    files = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for layer, tensors in enumerate(files.values()):
        for module, shape in MATRICES.items():
            tensors[f"model.layers.{layer}.{module}.weight"] = rng.standard_t(3, shape) / 8
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = rng.normal(size=HIDDEN)
        tensors[("model.embed_tokens.weight", "lm_head.weight")[layer]] = rng.normal(size=(256, HIDDEN))
    where = {name: file for file, tensors in files.items() for name in tensors}
    for file, tensors in files.items():
        write_safetensors(folder / file, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "phasewise-model.json").write_text("{}")
    return folder


def quantized(model, target, scheme):
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    python = home / "engine" / "bin" / "python"
    command = [python, "-I", SCRIPT, model, target, "--scheme", scheme, "--group-size", str(GROUP)]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    index = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(index.values())):
        tensors |= read_safetensors(target / file)
    assert tensors.keys() == index.keys()
    return tensors


def originals(model):
    tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        tensors |= read_safetensors(file)
    return tensors


def most_steps_off(original, values, scale):
    """How far the worst weight is off, in steps of its own scale."""
    wide = np.repeat(scale, original.shape[1] // scale.shape[1], axis=1)
    return (np.abs(values * wide - original) / wide).max()


def unpacked(words):
    """Eight unsigned 4-bit numbers per 32-bit word, the lowest bits first, 8 standing for zero."""
    return ((words[:, :, None] >> (4 * np.arange(8))) & 15).reshape(len(words), -1) - 8


@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_quantized_weights_are_within_half_a_step(model, tmp_path, scheme):
    before, after = originals(model), quantized(model, tmp_path / scheme, scheme)
    for name, original in before.items():
        module, _, leaf = name.rpartition(".")
        if not any(module.endswith(each) for each in MATRICES):
            assert np.array_equal(after[f"{module}.{leaf}"], original), name
            continue
        scale = after[f"{module}.weight_scale"]
        if scheme == "w8a8":
            values, groups = after[name], 1
        else:
            assert after[f"{module}.weight_shape"].tolist() == list(original.shape)
            values, groups = unpacked(after[f"{module}.weight_packed"]), original.shape[1] // GROUP
        assert scale.shape == (original.shape[0], groups)
        assert most_steps_off(original, values, scale) <= 0.54, name
    config = json.loads((tmp_path / scheme / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "compressed-tensors"
    assert config["ignore"] == ["lm_head"]
    assert (tmp_path / scheme / "tokenizer.json").is_file()
    assert not (tmp_path / scheme / "phasewise-model.json").exists()

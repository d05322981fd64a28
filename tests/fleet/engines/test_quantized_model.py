"""A quantized model appears only when whole, is made again when its source changes, and knows its limits."""

import json
import shutil
from pathlib import Path

import pytest

from phasewise.core.errors import ConfigError, EngineInstallFailed
from phasewise.fleet.engines import demo_model
from phasewise.fleet.engines.command_output import CommandFailed
from phasewise.fleet.engines.quantized_model import is_quantized, quantize_model, quantized_folder
from tests.fleet.engines.test_demo_model import Silent

SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}


def make_model(folder, **config):
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], **SHAPE, **config}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return str(folder)


def quantize(model, home, scheme="w8a8"):
    return quantize_model(model, scheme, home, Path("/engine/python"), home / "log", Silent())


@pytest.fixture
def commands(monkeypatch):
    """Every command that would have been run in the engine's environment; it writes what quantizing would."""
    seen = []

    def pretend(command, on_line, log):
        seen.append(command)
        shutil.copytree(command[3], command[4])

    monkeypatch.setattr(demo_model, "run_lines", pretend)
    return seen


def test_quantized_model_appears_whole_beside_its_notes(tmp_path, commands):
    model = make_model(tmp_path / "mine")
    assert not is_quantized(model, "w8a8", tmp_path)
    folder = quantize(model, tmp_path)
    assert folder == quantized_folder(model, "w8a8", tmp_path)
    assert json.loads((folder / "phasewise-model.json").read_text())["files"]["model.safetensors"] == 7
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert is_quantized(model, "w8a8", tmp_path)
    assert not is_quantized(model, "w4a16", tmp_path)


def test_changed_source_or_cut_result_must_be_made_again(tmp_path, commands):
    model = make_model(tmp_path / "mine")
    folder = quantize(model, tmp_path)
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"fine-tuned")
    assert not is_quantized(model, "w8a8", tmp_path)
    quantize(model, tmp_path)
    assert is_quantized(model, "w8a8", tmp_path)
    (folder / "model.safetensors").write_bytes(b"cut")
    assert not is_quantized(model, "w8a8", tmp_path)


def test_failure_says_why_and_keeps_what_was_there(tmp_path, commands, monkeypatch):
    model = make_model(tmp_path / "mine")
    folder = quantize(model, tmp_path)

    def fail(command, on_line, log):
        raise CommandFailed(1, ["no module named compressed_tensors"])

    monkeypatch.setattr(demo_model, "run_lines", fail)
    with pytest.raises(EngineInstallFailed, match="no module named compressed_tensors"):
        quantize(model, tmp_path)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_folders_of_the_same_name_do_not_share_a_result(tmp_path):
    one, other = make_model(tmp_path / "a" / "mine"), make_model(tmp_path / "b" / "mine")
    assert quantized_folder(one, "w8a8", tmp_path) != quantized_folder(other, "w8a8", tmp_path)


@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        (SHAPE, "64"),
        ({"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}, "128"),
        ({"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 3, "head_dim": 32}, "32"),
    ],
)
def test_largest_group_that_divides_every_layer_is_taken(tmp_path, commands, shape, group_size):
    quantize(make_model(tmp_path / "mine", **shape), tmp_path, "w4a16")
    assert commands[0][-2:] == ["--group-size", group_size]


def test_layers_that_no_group_divides_are_rejected_with_a_way_out(tmp_path, commands):
    model = make_model(tmp_path / "mine", hidden_size=1000, intermediate_size=2000, num_attention_heads=10)
    with pytest.raises(ConfigError, match="--scheme w8a8"):
        quantize(model, tmp_path, "w4a16")
    quantize(model, tmp_path, "w8a8")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "is quantized already"),
        ({"architectures": ["MambaForCausalLM"]}, "is a MambaForCausalLM"),
        ({"architectures": None}, "is a model of unknown kind"),
    ],
)
def test_models_it_cannot_do_are_rejected(tmp_path, commands, config, words):
    with pytest.raises(ConfigError, match=words):
        quantize(make_model(tmp_path / "mine", **config), tmp_path)
    assert commands == []


def test_model_without_safetensors_is_rejected(tmp_path, commands):
    model = make_model(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no model"):
        quantize(model, tmp_path)


def test_model_that_is_not_here_says_how_to_go_on(tmp_path, commands):
    with pytest.raises(ConfigError, match="phasewise model fetch smollm2-135m"):
        quantize("smollm2-135m", tmp_path)
    with pytest.raises(ConfigError, match="give its folder"):
        quantize("Qwen/Qwen3-0.6B", tmp_path)
    assert not is_quantized("Qwen/Qwen3-0.6B", "w8a8", tmp_path)

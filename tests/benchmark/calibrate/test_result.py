from __future__ import annotations

import json
from math import exp

import orjson
import pytest

from phasewise.benchmark.calibrate.result import Seen
from phasewise.costs.fit.step import StepBound, StepKind
from tests.benchmark.calibrate.builders import COST, MACHINE, MET, MISSED, make_calibration, make_fit
from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "calibrate.md"


def as_json(calibration):
    return json.loads(orjson.dumps(calibration.to_dict()))


def every_key(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from every_key(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from every_key(inner)


def test_every_field_for_programs_is_documented():
    whole = as_json(make_calibration(cells=(MISSED, MET), machine=MACHINE))
    page = PAGE.read_text()
    assert sorted({key for key in every_key(whole) if f"`{key}`" not in page}) == []


def test_a_step_that_was_never_seen_has_no_prediction():
    predictions = as_json(make_calibration())["predictions"]
    known = {
        (each["kind"], each["work"]["prompt_tokens"] or each["work"]["decode_tokens"])
        for each in predictions
        if each["predicted"]
    }
    assert {("prefill", 512), ("decode", 1)} <= known
    assert ("prefill", 8192) not in known
    assert ("decode", 64) not in known


def test_predictions_widen_by_the_errors_on_what_was_left_out():
    predictions = as_json(make_calibration())["predictions"]
    first = predictions[0]["predicted"]
    assert first["seconds"] < first["interval"]["high"] <= first["seconds"] * exp(0.20)
    assert first["interval"]["confidence"] == 0.9


def test_a_phase_with_too_few_steps_has_no_error_and_no_prediction():
    fit = make_fit(errors={StepKind.DECODE: (0.01,) * 40, StepKind.PREFILL: (0.01,) * 5})
    found = as_json(make_calibration(fit))
    assert found["held_out"]["prefill"] == {
        "steps": 5,
        "median_error": None,
        "log_span": None,
        "confidence": 0.9,
    }
    assert found["held_out"]["mixed"]["steps"] == 0
    assert found["held_out"]["decode"]["median_error"] == pytest.approx(exp(0.01) - 1)
    assert all(each["predicted"] is None for each in found["predictions"] if each["kind"] == "prefill")


def test_only_steps_that_can_be_predicted_are_said_to_be_bound():
    fit = make_fit(errors={StepKind.PREFILL: (0.0,) * 40})
    assert [each.work.kind for each in make_calibration(fit).bindings] == [StepKind.PREFILL]
    assert make_calibration(make_fit(errors={})).bindings == ()


def test_the_floor_is_weights_or_overhead_until_the_machine_is_known():
    alone, *_, prefill = make_calibration().bindings
    assert alone.bound is StepBound.WEIGHTS_OR_OVERHEAD
    assert prefill.bound is StepBound.COMPUTE
    # Reading 269 MB at 9 GB/s takes 30 of the floor's 56 ms.
    assert make_calibration(machine=MACHINE).bindings[0].bound is StepBound.WEIGHTS


def test_the_json_says_how_the_steps_were_seen():
    found = as_json(make_calibration(seen=Seen.CLIENT, unreported=3, stolen=None))
    assert (found["seen"], found["unread_steps"], found["stolen_share"]) == ("client timings", 3, None)
    assert found["cost"]["floor_s"] == COST.floor_s
    assert found["form"] == {"fits": True, "cells": 1, "missed": []}

"""Benchmarks end with 1 where what they counted is not what they promise."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
OWN_MODULES = {it.stem for it in BENCHMARKS.iterdir()}

GOOD = {
    "affinity": {"lost": {"A": 0, "B": 0}, "hit_share": {"A": 0.55, "B": 0.75}},
    "affinity_cells": {
        "ttft_ratio_to_least_outstanding": {"worst": 1.03},
        "ttft_ratio_to_round_robin": {"worst": 1.02},
        "least_hit_share_of_conversations": 0.65,
    },
    "disaggregation": {"recomputed_prompt_tokens": 0, "texts": 20, "equal_texts": 20, "kv_transfers": 9},
}
SAME = {"decisions": 9, "rejected": 1, "grants": 2, "failures": 1, "disaggregated": 3}
SAME |= {"complete": True, "difference": None}
GOOD["same_decisions"] = {"prefix_affinity": SAME, "disaggregated_auto": SAME, "disaggregated_always": SAME}


@pytest.fixture
def wrong_in(monkeypatch):
    """What a benchmark, by its name, finds wrong in a record of its own kind."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in OWN_MODULES]:
        monkeypatch.delitem(sys.modules, name)
    return lambda name, record: import_module(name).what_is_wrong(record)


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_where_all_is_as_promised(wrong_in, name):
    assert wrong_in(name, GOOD[name]) == []


@pytest.mark.parametrize(("name", "difference"), [
    ("affinity", {"lost": {"A": 0, "B": 1}}),
    ("same_decisions", {"prefix_affinity": {**SAME, "difference": {"line": 7}}}),
    ("same_decisions", {"prefix_affinity": {**SAME, "complete": False}}),
    ("same_decisions", {"prefix_affinity": {**SAME, "failures": 0}}),
    ("same_decisions", {"disaggregated_auto": {**SAME, "disaggregated": 0}}),
    ("affinity", {"hit_share": {"A": 0.55, "B": 0.55}}),
    ("affinity_cells", {"ttft_ratio_to_least_outstanding": {"worst": 1.1}}),
    ("affinity_cells", {"ttft_ratio_to_round_robin": {"worst": 1.3}}),
    ("affinity_cells", {"least_hit_share_of_conversations": 0.49}),
    ("disaggregation", {"recomputed_prompt_tokens": 1}),
    ("disaggregation", {"equal_texts": 19}),
    ("disaggregation", {"kv_transfers": 0}),
])  # fmt: skip
def test_each_count_that_is_off_is_told(wrong_in, name, difference):
    assert len(wrong_in(name, {**GOOD[name], **difference})) == 1

"""What benchmarks/split_decision.py makes of its runs."""

from __future__ import annotations

import json
import sys

import pytest

from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
OWN_MODULES = {"split_decision", "splitting", "kv_transfers", "resuming", "stress", "ending"}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in OWN_MODULES]:
        monkeypatch.delitem(sys.modules, name)
    import split_decision

    return split_decision


def run(benchmark, monkeypatch, capsys, **goodput):
    """The whole of it, but for serving: each run of each rule has its share of good requests."""
    monkeypatch.setattr(sys, "argv", ["split_decision.py", "--virtual", "--quick", "--json"])
    monkeypatch.setattr(benchmark, "end_in_order_when_told", lambda: None)
    monkeypatch.setattr(benchmark, "_virtual", lambda *_: (goodput, goodput))
    try:
        benchmark.main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_rule_that_loses_a_tenth_fails_and_the_figures_are_told_all_the_same(
    benchmark, monkeypatch, capsys
):
    code, record = run(benchmark, monkeypatch, capsys, auto=0.9, always=0.5, never=1.0, threshold=1.0)
    assert code
    assert record["virtual_regret_worst"] == 0.1


def test_what_a_threshold_does_better_is_told_beside_the_regret(benchmark, monkeypatch, capsys):
    code, record = run(benchmark, monkeypatch, capsys, auto=0.4, always=0.1, never=0.2, threshold=0.8)
    assert code == 0
    assert record["regret_worst"] == -1.0
    assert record["regret_to_threshold_worst"] == record["regret_to_threshold_median"] == 0.5


def test_seeds_that_the_rule_was_tuned_on_are_not_reported_unless_asked_for(benchmark, monkeypatch, capsys):
    _, record = run(benchmark, monkeypatch, capsys, auto=1.0, always=1.0, never=1.0, threshold=1.0)
    assert not {1, 2, 3} & set(record["seeds"])


def test_a_short_prompt_that_waits_for_a_second_meets_the_promise_but_not_the_strict_one(benchmark):
    loads = sys.modules["splitting.loads"]
    ask = loads.Ask(0.0, 50, 100)
    assert loads.met(ask, 1.0, 0.06)
    assert not loads.met(ask, 1.0, 0.06, loads.STRICT_TTFT_FLOOR_S)

"""What benchmarks/split_decision.py makes of its runs."""

from __future__ import annotations

import json
import sys

from benchmarks import split_decision
from benchmarks.split_decision import STRICT_TTFT_FLOOR_S, Ask, met


def run(monkeypatch, capsys, **goodput):
    """The whole of it, but for serving: each run of each rule has its share of good requests."""
    monkeypatch.setattr(sys, "argv", ["split_decision.py", "--quick", "--json"])
    monkeypatch.setattr(split_decision, "_virtual", lambda *_: (goodput, goodput))
    try:
        split_decision.main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_rule_that_loses_a_tenth_fails_and_the_figures_are_told_all_the_same(monkeypatch, capsys):
    code, record = run(monkeypatch, capsys, auto=0.9, always=0.5, never=1.0, threshold=1.0)
    assert code
    assert record["regret_worst"] == 0.1


def test_what_a_threshold_does_better_is_told_beside_the_regret(monkeypatch, capsys):
    code, record = run(monkeypatch, capsys, auto=0.4, always=0.1, never=0.2, threshold=0.8)
    assert code == 0
    assert record["regret_worst"] == -1.0
    assert record["regret_to_threshold_worst"] == record["regret_to_threshold_median"] == 0.5
    assert not {1, 2, 3} & set(record["seeds"])  # on which the rule was tuned


def test_a_short_prompt_that_waits_for_a_second_meets_the_promise_but_not_the_strict_one():
    ask = Ask(0.0, 50, 100)
    assert met(ask, 1.0, 0.06)
    assert not met(ask, 1.0, 0.06, STRICT_TTFT_FLOOR_S)

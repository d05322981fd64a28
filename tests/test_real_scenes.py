"""What clients lost in a real scene, and what its removals show."""

from __future__ import annotations

import importlib
import json

import pytest

from tests.paths import ROOT


@pytest.fixture
def real_scenes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("real_scenes")


def lost(real_scenes, tmp_path, *requests):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(it) + "\n" for it in requests), encoding="utf-8")
    return real_scenes.loss_of(log, 100.0, 145.0)


def request(**fields):
    return {"t": 110.0, "ttft": 0.5, "tpot": 0.1, "worst": 0.2, "n": 11, "end": 112.0} | fields


@pytest.mark.parametrize(
    ("seen", "start_s", "stream_s", "failing_s"),
    [
        (request(), 0.0, 0.0, 0.0),
        (request(ttft=4.0), 2.5, 0.0, 0.0),
        (request(tpot=0.5), 0.0, 3.0, 0.0),
        (request(worst=3.2), 0.0, 3.0, 0.0),
        ({"t": 110.0, "err": "HTTP 400"}, 0.0, 0.0, 15.0),
        ({"t": 140.0, "open": True}, 3.5, 0.0, 0.0),
    ],
)
def test_a_client_loses_what_is_beyond_the_objective(
    real_scenes, tmp_path, seen, start_s, stream_s, failing_s
):
    found = lost(real_scenes, tmp_path, seen)
    assert found["slow_to_start"] == pytest.approx(start_s)
    assert found["slow_to_stream"] == pytest.approx(stream_s)
    assert found["failing"] == pytest.approx(failing_s)
    assert found["late"] == (start_s + stream_s + failing_s > 0)


def test_requests_outside_the_window_young_ones_and_those_that_left_do_not_count(real_scenes, tmp_path):
    outside = request(t=10.0, end=99.0), request(t=146.0, end=150.0)
    young, left = {"t": 144.0, "open": True}, request(ttft=9.0, aborted=True)
    assert lost(real_scenes, tmp_path, *outside, young, left)["requests"] == 0


def scene(late, **totals):
    losses = {
        name: {"slow_to_start": seconds, "slow_to_stream": 0.0, "failing": 0.0, "requests": 100, "late": late}
        for name, seconds in totals.items()
    }
    return {
        "losses": {"as planted": losses["whole"], "no hogs": losses["hogs"], "half the load": losses["load"]},
        "without": [
            {"name": "no hogs", "right": ["slow_to_start/engine_starved_of_cpu", "slow_to_stream"]},
            {"name": "half the load", "right": ["slow_to_start/overload"]},
        ],
    }


def test_true_is_what_takes_most_of_the_loss_away_in_a_phase_that_has_any(real_scenes):
    state, true = real_scenes.truth_of(scene(40, whole=100.0, hogs=5.0, load=90.0))
    assert (state, true) == ("slow", ["slow_to_start/engine_starved_of_cpu"])


def test_few_late_requests_are_healthy_and_some_are_not_scored(real_scenes):
    assert real_scenes.truth_of(scene(2, whole=3.0, hogs=0.0, load=0.0)) == ("healthy", ["healthy"])
    assert real_scenes.truth_of(scene(9, whole=9.0, hogs=0.0, load=0.0)) == ("between", [])

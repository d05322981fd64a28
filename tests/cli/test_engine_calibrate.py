"""`phasewise engine calibrate` as it is typed, against fake engines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from phasewise.costs.fit.step import StepCost
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.fake_engine.engine import FakeEngineConfig
from tests.fake_engine_thread import running_fake_engine
from tests.real_engine import free_port

COST = StepCost(
    floor_s=8e-3,
    knee_tokens=128,
    beyond_knee_s_per_token=40e-6,
    attention_s_per_token_pair=8e-9,
    kv_read_s_per_token=0.4e-6,
    per_request_s=50e-6,
)
SHORT = ("--minutes", "0.04", "--seed", "3")


@pytest.fixture(scope="module")
def engine():
    with running_fake_engine(FakeEngineConfig(cost=COST, steps_port=0)) as running:
        yield running


def command(*arguments):
    return [sys.executable, "-m", "phasewise.cli", "engine", "calibrate", *arguments]


def run(*arguments, **environment):
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env=os.environ | {"COLUMNS": "80", **environment},
    )


class StuckAfterOneStep:
    """A cost for an engine that answers once and then no more."""

    def __init__(self):
        self.steps = 0

    def __call__(self, work):
        self.steps += 1
        return 0.001 if self.steps == 1 else 600.0


def test_programs_get_one_json_object_and_another_command_the_costs(engine, tmp_path):
    costs = tmp_path / "costs.json"
    where = (engine.base_url, *SHORT, "--steps-url", engine.steps_url)
    done = run(*where, "--save", str(costs), "--json", "--api-key", "sk-hidden")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert asdict(load_fit(costs).cost) == found["cost"]
    assert "sk-hidden" not in costs.read_text()
    assert found["v"] == 1
    assert (found["url"], found["model"], found["seed"]) == (engine.base_url, engine.model, 3)
    assert found["seen"] == "step record"
    assert found["cost"]["floor_s"] == pytest.approx(COST.floor_s, rel=0.1)
    assert set(found["held_out"]) == {"prefill", "decode", "mixed"}
    assert "sk-hidden" not in done.stdout + done.stderr


def test_people_get_tables_that_fit_a_narrow_screen_without_colour(engine):
    url = f"{engine.base_url}/v1"
    done = run(url, *SHORT, "--steps-url", engine.steps_url, NO_COLOR="1", PHASEWISE_API_KEY="sk-hidden")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    for words in ("floor: weights and", "the knee", "median error", "unknown", "bound by"):
        assert words in done.stdout
    assert "sk-hidden" not in done.stdout + done.stderr


def test_an_interrupt_prints_the_fit_so_far(engine):
    probing = subprocess.Popen(
        command(engine.base_url, "--minutes", "5", "--steps-url", engine.steps_url, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # It says how far it is every ten seconds where nothing can be redrawn.
    assert " of 300 s" in probing.stderr.readline()
    probing.send_signal(signal.SIGINT)
    words, errors = probing.communicate(timeout=300)
    assert probing.returncode == 130, errors
    found = json.loads(words)
    assert found["cost"]["floor_s"] == pytest.approx(COST.floor_s, rel=0.1)
    assert found["took_s"] < 100
    assert "Traceback" not in errors


def test_a_second_interrupt_ends_it_at_once():
    cost = StuckAfterOneStep()
    with running_fake_engine(FakeEngineConfig(cost=cost, steps_port=0)) as stuck:
        probing = subprocess.Popen(
            command(stuck.base_url, "--steps-url", stuck.steps_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline_s = time.monotonic() + 60
        while cost.steps < 2 and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for _ in range(2):
            probing.send_signal(signal.SIGINT)
            time.sleep(0.5)
        words, errors = probing.communicate(timeout=300)
    assert (probing.returncode, words) == (130, "")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "error", "hint", "code"),
    [
        ([f"http://127.0.0.1:{free_port()}"], "error: nothing answers at", "check the address", 1),
        (["http://127.0.0.1:9", "--minutes", "0"], "error: --minutes 0", "a number above 0", 2),
        (["http://127.0.0.1:9", "--minutes", "nan"], "error: --minutes nan", "a number above 0", 2),
        (["http://127.0.0.1:9", "--gpu", "abacus"], "error: --gpu abacus is unknown", "H100", 2),
        (
            ["http://127.0.0.1:9", "--config", "/none/config.json"],
            "there is no /none/config",
            "config.json",
            1,
        ),
    ],
)
def test_a_wrong_turn_is_one_sentence_and_a_hint(arguments, error, hint, code):
    done = run(*arguments)
    assert done.returncode == code
    assert error in done.stderr
    assert hint in done.stderr.partition("hint:")[2]
    assert "Traceback" not in done.stderr


def test_a_model_that_is_not_served_is_said_at_once(engine):
    done = run(engine.base_url, "--model", "other")
    assert done.returncode == 1
    assert f"it serves {engine.model}" in done.stderr

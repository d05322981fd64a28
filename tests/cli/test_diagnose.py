"""`phasewise diagnose` as it is typed, against a fake engine."""

import json
import signal
import subprocess
import sys
import time


def diagnose(*arguments):
    return [sys.executable, "-m", "phasewise.cli", "diagnose", *arguments]


def test_a_probe_ends_in_a_verdict_for_programs(fake_engine):
    command = diagnose(fake_engine.base_url, "--probe", "--json", "--steps-url", fake_engine.steps_url)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "healthy"
    assert verdict["start"]["requests"] == 10
    assert verdict["start"]["step_timed"] > 0
    assert "probing" in done.stderr


def test_a_probe_ends_in_a_screen_for_people(fake_engine):
    command = diagnose(f"{fake_engine.base_url}/v1", "--probe", "--slo", "ttft=1ms,tpot=1ms")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    for word in ("SLOW TO", "Time to first token", "Time per output token", "residual", "objective"):
        assert word in done.stdout
    assert all(len(line) <= 110 for line in done.stdout.splitlines())


def test_an_interrupt_ends_the_window_early_with_a_verdict(fake_engine):
    watching = subprocess.Popen(
        diagnose(fake_engine.base_url, "--window", "600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    watching.send_signal(signal.SIGINT)
    words, _ = watching.communicate(timeout=30)
    assert watching.returncode == 0
    assert "TOO LITTLE SEEN" in words


def test_nothing_at_the_address_is_one_sentence_and_a_hint():
    done = subprocess.run(
        diagnose("http://127.0.0.1:9"), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "error: nothing answers at http://127.0.0.1:9" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr

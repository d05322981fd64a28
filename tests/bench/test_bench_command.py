from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGINT
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from phasewise.adapters.vllm_metrics import MetricsSnapshot, parse_metrics
from phasewise.cli.address import origin
from phasewise.cli.app import app
from phasewise.cli.bench import choose_load, choose_shape
from phasewise.errors import ConfigError
from phasewise.model import timeline_record
from phasewise.workload.arrivals import ClosedLoop, OpenLoop, Spacing
from phasewise.workload.presets import PRESETS, PresetName


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def fake_engine(*options: str) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "phasewise.fake_engine", "--port", str(port), *options]
    process = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(url, lambda metrics: True)
        yield url
    finally:
        process.send_signal(SIGINT)
        process.wait(10)


def wait_until(url: str, holds: Callable[[MetricsSnapshot], bool], within_s: float = 60.0) -> None:
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        try:
            with urlopen(f"{url}/metrics") as reply:
                if holds(parse_metrics(reply.read().decode(), 0.0)):
                    return
        except OSError:
            pass
        time.sleep(0.02)
    pytest.fail(f"{url} did not come to it in {within_s:g} s")


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phasewise.cli", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_result_goes_to_stdout_and_the_timelines_to_their_file(tmp_path):
    path = tmp_path / "timelines.ndjson"
    with fake_engine() as url:
        options = ("--requests", "6", "--prompt-tokens", "80", "--output-tokens", "5", "--seed", "3")
        table = run_bench(url, *options)
        report = run_bench(f"{url}/v1", *options, "--json", "--timelines", str(path), "--rate", "100")
    assert table.returncode == 0, table.stderr
    assert "6 of 6 requests answered" in table.stdout
    assert "--seed 3 repeats" in table.stdout
    figures = json.loads(report.stdout)
    assert (figures["succeeded"], figures["seed"], figures["exact_prompts"]) == (6, 3, True)
    timelines = [timeline_record.decode(line) for line in path.read_bytes().splitlines()]
    assert [timeline.output_tokens for timeline in timelines] == [5] * 6
    assert {timeline.prompt_tokens for timeline in timelines} == {80}


def test_an_interrupt_prints_what_was_measured():
    # Answers take two seconds of slow steps: time enough to interrupt while both streams are open.
    with fake_engine("--preset", "cpu-demo") as url:
        command = [sys.executable, "-m", "phasewise.cli", "bench", url, "--requests", "50", "--json"]
        options = ["--prompt-tokens", "40", "--output-tokens", "36", "--concurrency", "2"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_until(url, lambda metrics: (metrics.counter("request_success_total") or 0) >= 2)
        wait_until(url, lambda metrics: metrics.gauge("num_requests_running") == 2)
        process.send_signal(SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["cut_short"]
    assert report["succeeded"] >= 2
    assert report["errors"] == {"cut_short": 2}


def test_an_engine_that_is_down_is_one_sentence_and_exit_code_1():
    result = run_bench("http://127.0.0.1:9")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "nothing answers at http://127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_cannot_be_written_is_found_out_before_the_run(tmp_path):
    result = CliRunner().invoke(app, ["bench", "http://127.0.0.1:9", "--timelines", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be written" in str(result.exception)


def test_explicit_lengths_take_the_presets_place():
    shape = choose_shape(PresetName.RAG, 300, 20, 100)
    assert (shape.prompt.median_tokens, shape.prompt.spread) == (300, 0.0)
    assert (shape.output.median_tokens, shape.output.spread) == (20, 0.0)
    assert (shape.shared_prefix_tokens, shape.shared_share) == (100, 1.0)
    assert choose_shape(PresetName.RAG, None, None, None) == PRESETS[PresetName.RAG]


def test_a_fixed_prompt_has_no_system_prompt_unless_asked_for():
    assert choose_shape(PresetName.CODEGEN, 100, None, None).shared_prefix_tokens == 0


@pytest.mark.parametrize("shared_tokens", [-1, 100, 500])
def test_a_shared_prefix_must_leave_room_for_the_rest(shared_tokens):
    with pytest.raises(ConfigError, match="does not fit prompts of 100"):
        choose_shape(PresetName.CHAT, 100, None, shared_tokens)


def test_rate_and_concurrency_exclude_each_other():
    assert choose_load(2.0, Spacing.CONSTANT, None) == OpenLoop(2.0, Spacing.CONSTANT)
    assert choose_load(None, Spacing.POISSON, 7) == ClosedLoop(7)
    assert choose_load(None, Spacing.POISSON, None) == ClosedLoop(4)
    with pytest.raises(ConfigError, match="exclude each other"):
        choose_load(2.0, Spacing.POISSON, 7)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_of_an_openai_client_will_do(url):
    assert origin(url) == "http://h:1"

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from signal import SIGINT
from urllib.request import urlopen

import numpy as np
import pytest
from typer.testing import CliRunner

from phasewise.benchmark.results import build_report
from phasewise.benchmark.run import BenchRun, GeneratorHealth
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Spacing
from phasewise.benchmark.workload.plan import Plan
from phasewise.cli.app import app
from phasewise.cli.bench_modes import find_largest_rate, parse_sweep
from phasewise.cli.measuring import Interrupts, command_line
from phasewise.clients.http_client import origin
from phasewise.core import timeline_record
from phasewise.core.engine_metrics import MetricsSnapshot
from phasewise.core.errors import ConfigError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.engines.vllm import parse_metrics
from phasewise.report.bench.page import Measured
from tests.builders import EPOCH_S, make_timeline


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def fake_engine(*options: str) -> Iterator[str]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "phasewise.cli",
        "engine",
        "fake",
        "--no-steps",
        "--port",
        str(port),
        *options,
    ]
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
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_the_result_goes_to_stdout_and_the_timelines_to_their_file(tmp_path):
    path = tmp_path / "timelines.ndjson"
    with fake_engine() as url:
        options = ("--requests", "6", "--prompt-tokens", "80", "--output-tokens", "5", "--seed", "3")
        table = run_bench(url, *options)
        report = run_bench(f"{url}/v1", *options, "--json", "--timelines", str(path), "--rate", "100")
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
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["cut_short"]
    assert report["succeeded"] >= 2
    assert report["errors"] == {"cut_short": 2}


def test_an_interrupt_between_the_points_of_a_sweep_keeps_those_that_are_done():
    with fake_engine("--preset", "cpu-demo") as url:
        command = [
            sys.executable,
            "-m",
            "phasewise.cli",
            "bench",
            url,
            "--sweep",
            "concurrency=1,2",
            "--json",
        ]
        options = ["--requests", "2", "--prompt-tokens", "40", "--output-tokens", "40"]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # The first point's two requests and the one that asks for fixed lengths; then the second point's.
        wait_until(url, lambda metrics: (metrics.counter("request_success_total") or 0) >= 3)
        process.send_signal(SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    points = json.loads(out)["points"]
    assert points[0]["succeeded"] == 2
    assert b"Traceback" not in err


def test_an_interrupt_before_anything_was_measured_is_one_sentence():
    # It takes connections and says nothing: preparing the run waits for it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "phasewise.cli", "bench", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        taken, _ = silent.accept()
        with taken:
            process.send_signal(SIGINT)
            out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == ""
    assert "stopped before anything was measured" in err
    assert "Traceback" not in err


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


def test_a_sweep_is_over_rates_or_over_concurrencies():
    assert parse_sweep("rate=1,2.5", Spacing.CONSTANT, 1.0) == (
        OpenLoop(1.0, Spacing.CONSTANT),
        OpenLoop(2.5, Spacing.CONSTANT),
    )
    assert parse_sweep("concurrency=1,16", Spacing.POISSON, 1.0) == (ClosedLoop(1), ClosedLoop(16))
    for text in ("1,2", "rate=", "rate=a", "load=1"):
        with pytest.raises(ConfigError, match="write rate=1,2,4"):
            parse_sweep(text, Spacing.POISSON, 1.0)


def test_the_command_in_a_report_does_not_hold_the_key():
    shown = command_line(["bench", "http://e", "--api-key", "hidden", "--rate", "2"])
    assert shown == "phasewise bench http://e --api-key '***' --rate 2"
    assert "hidden" not in command_line(["bench", "--api-key=hidden"])


def test_a_trace_is_replayed_from_its_file(tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 100 * at, "input_length": 540 + at, "output_length": 3, "hash_ids": [7, 100 + at]}
        for at in range(5)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with fake_engine() as url:
        result = run_bench(url, "--trace", str(trace), "--speed", "2", "--json")
    figures = json.loads(result.stdout)
    assert figures["succeeded"] == 5
    assert figures["prompt_tokens"]["max"] >= 544
    # All but the first find the block that they share.
    assert figures["cached_tokens"] >= 4 * 384
    assert not any("not cold" in note for note in figures["notes"])


def test_a_sweep_prints_a_row_per_load_and_writes_one_page(tmp_path):
    page = tmp_path / "report.html"
    options = ("--requests", "8", "--prompt-tokens", "60", "--output-tokens", "5", "--html", str(page))
    with fake_engine() as url:
        result = run_bench(url, "--sweep", "concurrency=1,3", *options, "--json")
    figures = json.loads(result.stdout)
    assert [point["load"] for point in figures["points"]] == ["1 at once", "3 at once"]
    assert [point["succeeded"] for point in figures["points"]] == [8, 8]
    assert "phasewise bench" in page.read_text()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--find-max-rate", "--requests", "5"], "given together"),
        (["--find-max-rate", "--concurrency", "5"], "given together"),
        (["--sweep", "rate=1", "--rate", "5"], "given together"),
        (["--warm-up", "40"], "lower --warm-up"),
        (["--find-max-rate", "--attainment", "1.5"], "--attainment 1.5"),
        (["--sweep", "fast"], "--sweep 'fast'"),
        (["--spacing", "poisson", "--rate", "1", "--burstiness", "2"], "burstiness"),
        (["--html", "/"], "cannot be written"),
    ],
)
def test_options_that_cannot_be_meant_are_rejected_before_anything_is_sent(options, complaint):
    result = CliRunner().invoke(app, ["bench", "http://127.0.0.1:9", *options])
    assert isinstance(result.exception, ConfigError)
    assert complaint in str(result.exception)


# The imports come first: every file that is opened gives the interpreter away for the length of a sum.
STARVED = """
import threading
import phasewise.cli.bench
from phasewise.cli.app import main
def hold_the_interpreter():
    while True:
        sum(range(1_000_000))
threading.Thread(target=hold_the_interpreter, daemon=True).start()
main()
"""


def test_a_starved_generator_voids_its_run_in_words_and_by_exit_code():
    with fake_engine() as url:
        command = [sys.executable, "-c", STARVED, "bench", url, "--rate", "40", "--requests", "16", "--json"]
        options = ["--prompt-tokens", "60", "--output-tokens", "5"]
        result = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=300, check=False
        )
    assert result.returncode == 1, result.stderr
    assert any("sent late" in reason for reason in json.loads(result.stdout)["void"])


class Capacity:
    """Stands for a job on a server that holds its SLO up to some rate."""

    def __init__(self, rate_per_s: float, void_above_per_s: float = inf) -> None:
        self.rate_per_s = rate_per_s
        self.void_above_per_s = void_above_per_s

    async def measure(self, load: OpenLoop, label: str, requests: int, seed: int) -> Measured:
        ttft_s = 0.1 if load.rate_per_s <= self.rate_per_s else 5.0
        timelines = [
            make_timeline((ttft_s, ttft_s + 0.01), started_unix_s=EPOCH_S + at / load.rate_per_s)
            for at in range(requests)
        ]
        plan = Plan.of_singles((), load)
        held_back = int(load.rate_per_s > self.void_above_per_s)
        run = BenchRun(
            Target("http://e", "m"), plan, tuple(timelines), wall_s=1.0, started_unix_s=EPOCH_S,
            health=GeneratorHealth(held_back=held_back),
        )  # fmt: skip
        return Measured(run, build_report(run, DEFAULT_SLO, np.random.default_rng(seed)), label)


async def test_the_search_brackets_the_largest_rate_that_holds():
    found, measured = await find_largest_rate(Capacity(5.0).measure, OpenLoop(1.0), 0.9, 1, Interrupts())
    assert found.low <= 5.0 < found.high
    assert found.decided
    assert found.trials == len(measured)


async def test_a_search_that_the_generator_cannot_follow_ends_with_what_held_until_then():
    server = Capacity(50.0, void_above_per_s=3.0)
    found, measured = await find_largest_rate(server.measure, OpenLoop(1.0), 0.9, 1, Interrupts())
    assert not found.decided
    assert found.low == 2.0
    assert "the load generator cannot keep up" in found.words
    assert measured[-1].report.void


async def test_a_search_that_is_interrupted_says_what_held_until_then():
    interrupts = Interrupts()

    async def measure(load: OpenLoop, label: str, requests: int, seed: int) -> Measured:
        interrupts.requested = load.rate_per_s > 1.0
        return await Capacity(50.0).measure(load, label, requests, seed)

    found, measured = await find_largest_rate(measure, OpenLoop(1.0), 0.9, 1, interrupts)
    assert not found.decided
    assert found.low == 1.0
    assert found.words.startswith("interrupted")
    assert len(measured) == 2


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_address_of_an_openai_client_will_do(url):
    assert origin(url) == "http://h:1"

"""`phasewise simulate`: what it reads, prints and rejects."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.core.errors import PhasewiseError
from phasewise.core.latency import e2e_s, tpot_s, ttft_s
from phasewise.core.statistics import quantile
from phasewise.core.timeline import AttemptKind, Part
from phasewise.core.timeline_record import decode
from phasewise.costs.fit.solve import FittedCost
from phasewise.diagnosis.gather.costs_file import save_fit
from tests.costs.fits import make_fit
from tests.paths import ROOT

LLAMA_70B = str(ROOT / "examples" / "models" / "llama-3-70b.json")
RUNNER = CliRunner()
FEW = ("--costs", "cpu-demo", "--requests", "60", "--rate", "1", "--seed", "4")


def run(*arguments):
    return RUNNER.invoke(app, ["simulate", *arguments])


def facts(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


def rejected(*arguments):
    result = run(*arguments)
    assert isinstance(result.exception, PhasewiseError)
    assert result.exception.hint
    return str(result.exception)


def test_a_larger_fleet_meets_more_objectives_and_the_same_seed_gives_the_same_figures():
    few, many = facts(*FEW, "--vary", "main=1,4")["fleets"]
    assert (few["fleet"], many["fleet"]) == ("1 main", "4 main")
    assert few["attained"] < many["attained"]
    assert few["tpot_p50_s"] > many["tpot_p50_s"]
    assert facts(*FEW, "--vary", "main=1,4")["fleets"] == [few, many]


def test_the_table_says_where_the_step_times_are_from():
    page = run(*FEW).stdout
    assert "Step times are those of cpu-demo." in page
    assert "1 main: main" in page
    modelled = run("--model", LLAMA_70B, "--gpus", "4", "--requests", "40", "--rate", "2").stdout
    assert "modelled from the data sheet of 4 x H100, not measured" in modelled
    assert all(len(line) <= 80 for line in page.splitlines())


def test_timelines_are_those_of_a_gateway(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "pools:\n  - {name: read, role: prefill, replicas: 1}\n  - {name: write, role: decode, replicas: 2}\n"
        "gateway: {kv_transfer: {when: always}}\n"
    )
    file = tmp_path / "timelines.ndjson"
    figures = facts(str(fleet), *FEW, "--timelines", str(file))["fleets"][0]
    timelines = [decode(line) for line in file.read_bytes().splitlines()]
    assert len(timelines) == 60
    assert quantile([ttft_s(it) for it in timelines], 0.9) == pytest.approx(figures["ttft_p90_s"], abs=2e-4)
    assert quantile([tpot_s(it) for it in timelines], 0.5) == pytest.approx(figures["tpot_p50_s"], abs=2e-4)
    assert quantile([e2e_s(it) for it in timelines], 0.5) == pytest.approx(figures["e2e_p50_s"], abs=2e-4)
    assert figures["split_share"] == 1.0
    for it in timelines:
        assert [attempt.kind for attempt in it.attempts] == [
            AttemptKind.PREFILL_SIDE,
            AttemptKind.DECODE_SIDE,
        ]
        parts = [span for attempt in it.attempts for span in attempt.spans]
        assert {span.part for span in parts} == {
            Part.ENGINE_QUEUE, Part.PREFILL, Part.KV_TRANSFER, Part.DECODE
        }  # fmt: skip
        # All of TTFT is explained, but for what lies between prefill and decode.
        known_s = sum(span.duration_s for span in (*it.spans, *parts) if span.part is not Part.DECODE)
        assert known_s == pytest.approx(ttft_s(it), abs=1e-3)


def test_conversations_and_traces_are_simulated(tmp_path):
    talks = facts("--costs", "cpu-demo", "--turns", "4", "--rate", "0.2", "--requests", "40")["fleets"][0]
    assert talks["requests"] == 40
    assert talks["cached_share"] > 0.3
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 500 * n, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 10 + n]}
        for n in range(30)
    ]
    trace.write_text("\n".join(map(json.dumps, lines)))
    traced = facts("--costs", "cpu-demo", "--trace", str(trace))["fleets"][0]
    assert traced["requests"] == 30
    # Of every prompt but the first, two blocks of 512 are cached.
    assert traced["cached_share"] == pytest.approx(29 * 1024 / (30 * 1100), rel=0.15)


def test_a_closed_loop_sends_as_many_requests_at_once():
    closed = facts("--costs", "cpu-demo", "--concurrency", "3", "--requests", "30")["fleets"][0]
    assert (closed["requests"], closed["answered"]) == (30, 30)
    assert closed["pools"][0]["busy"] > 0.95


def test_measured_step_times_give_intervals(tmp_path):
    fit = make_fit()
    slower, faster = (
        FittedCost(replace(fit.cost, floor_s=fit.cost.floor_s * factor), 0.0) for factor in (1.2, 0.9)
    )
    file = tmp_path / "costs.json"
    save_fit(file, replace(fit, draws=(slower, faster)))
    arguments = ("--costs", str(file), "--requests", "40", "--rate", "0.2", "--seed", "4")
    figures = facts(*arguments)["fleets"][0]
    low, high = figures["intervals"]["tpot_p50_s"]
    assert low < figures["tpot_p50_s"] < high
    assert facts(*arguments, "--draws", "0")["fleets"][0]["intervals"] == {}
    assert "80% intervals" in run(*arguments).stdout


def test_what_is_too_long_for_the_context_is_counted_and_cut():
    sizes = ("--prompt-tokens", "8150", "--output-tokens", "1000", "--shared-prefix-tokens", "0")
    cut = facts("--costs", "cpu-demo", "--concurrency", "1", "--requests", "3", *sizes)["fleets"][0]
    assert (cut["answered"], cut["too_long"]) == (3, 0)
    # 42 tokens and not 1,000: so many does the context leave.
    assert 0.05 < cut["tpot_p50_s"] < 0.2
    sizes = ("--prompt-tokens", "9000", "--shared-prefix-tokens", "0")
    result = run("--costs", "cpu-demo", "--rate", "1", "--requests", "3", *sizes)
    assert "3 too long for the context" in result.stdout


def test_a_burst_at_the_end_is_no_saturation():
    sizes = ("--prompt-tokens", "400", "--output-tokens", "40", "--shared-prefix-tokens", "0")
    for seed in range(6):
        load = ("--rate", "0.8", "--requests", "120", "--seed", str(seed))
        assert not facts("--costs", "cpu-demo", *load, *sizes, "--vary", "main=2")["fleets"][0]["saturated"]


def test_several_pools_may_vary(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        "pools:\n  - {name: read, role: prefill, replicas: 1, levers: {kv_dtype: fp8}}\n"
        "  - {name: write, role: decode, replicas: 2, levers: {kv_dtype: fp8}}\n"
    )
    vary = ("--vary", "read=1,2", "--vary", "write=1,3")
    rows = facts(str(fleet), *FEW, *vary)["fleets"]
    assert [it["fleet"] for it in rows] == [
        "1 read + 1 write", "1 read + 3 write", "2 read + 1 write", "2 read + 3 write"
    ]  # fmt: skip
    assert "not simulated: kv_dtype of pool read, kv_dtype of pool write" in run(str(fleet), *FEW).stderr


def test_a_fleet_that_cannot_keep_up_has_no_ttft():
    arguments = ("--costs", "cpu-demo", "--rate", "4", "--requests", "300", "--seed", "1")
    few, many = facts(*arguments, "--vary", "main=1,8")["fleets"]
    assert (few["saturated"], many["saturated"]) == (True, False)
    assert few["ttft_p50_s"] is None
    assert "saturated" in run(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "how fast an engine is"),
        (("--costs", "cpu-demo", "--model", LLAMA_70B), "both given"),
        ((*FEW, "--vary", "main=0"), "not a pool with numbers"),
        ((*FEW, "--vary", "main=1,2", "--timelines", "t.ndjson"), "several fleets"),
        (("--costs", "no-such-file"), "cannot be read"),
        (("--model", LLAMA_70B, "--gpus", "1"), "weights do not fit"),
        ((*FEW, "--vary", "main"), "--vary main"),
        ((*FEW, "--vary", "other=2"), "no pool is named 'other'"),
        (("--costs", "cpu-demo", "--duration", "10"), "closed loop without an end"),
    ],
)
def test_what_cannot_be_simulated_is_rejected_with_a_hint(arguments, words):
    assert words in rejected(*arguments)

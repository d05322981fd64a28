"""Every figure of a sheet can be derived again from the formula beside it."""

import re
from dataclasses import replace

import pytest

from phasewise.core.slo import Slo
from phasewise.core.units import duration, significant, size
from phasewise.costs.roofline.capacity import UniformTraffic, request_s
from phasewise.costs.sheet.build import sheet_of
from phasewise.costs.sheet.facts import SheetSubject, power
from tests.costs.deployments import deploy

WORD = re.compile(r"[A-Za-z][A-Za-z-]*")


def make_sheet(deployment, traffic=None, rate=30.0, slo=Slo(ttft_s=2.0, tpot_s=0.05)):  # noqa: B008
    traffic = traffic or UniformTraffic(2000, 300)
    return sheet_of(
        SheetSubject("a model", "H100", deployment, traffic, traffic.mean_context_tokens, slo, 1024, rate)
    )


def evaluated(formula):
    """What a reader with a calculator gets: words are left out, x is times, commas set thousands apart."""
    numbers = re.sub(r"(?<=\d),(?=\d{3})", "", formula.partition(", rounded")[0])
    exponents = re.sub(r"(\d)e(-?\d)", r"\1@\2", numbers)
    words = WORD.sub(lambda word: "*" if word[0] == "x" else "", exponents)
    return eval(words.replace(",", "").replace("@", "e"))  # noqa: S307


SHEETS = {
    "dense": make_sheet(deploy("llama-3-70b", gpus=8)),
    "one device": make_sheet(deploy("llama-3-8b"), UniformTraffic(20_000, 300, cached_tokens=5_000)),
    "multi-head": make_sheet(deploy("llama-13b-multi-head", gpu="A100", gpus=2)),
    "latent and routed": make_sheet(deploy("deepseek-v3", gpu="MI300X", gpus=8)),
    "routed": make_sheet(deploy("mixtral-8x7b", gpus=4, weights="w4a16"), UniformTraffic(30, 30)),
    "latent in chunks": make_sheet(
        deploy("deepseek-v3", gpus=16, chunk_tokens=512), UniformTraffic(3000, 300, 700)
    ),
    "compute or reads": make_sheet(deploy("llama-3-8b", chunk_tokens=1000), UniformTraffic(2100, 300)),
    "windows": make_sheet(deploy("gemma-2-9b", gpu="L40S", weights="fp8", kv_element_bytes=1.0)),
}


@pytest.mark.parametrize("kind", SHEETS)
def test_every_formula_gives_its_figure(kind):
    facts = [fact for section in SHEETS[kind].sections for fact in section.facts if fact.formula]
    wrong = {
        fact.key: (fact.value, evaluated(fact.formula), fact.formula)
        for fact in facts
        if fact.key != "replicas" and evaluated(fact.formula) != pytest.approx(fact.value, rel=0.005)
    }
    assert wrong == {}
    assert len(facts) > 15


def test_parts_whose_longer_side_differs_from_chunk_to_chunk_are_named_so():
    formula = SHEETS["compute or reads"].fact("prefill_s").formula
    assert "compute or weights, chunk by chunk" in formula
    assert "chunk by chunk" not in SHEETS["dense"].fact("prefill_s").formula


def test_answer_and_table_name_the_same_bound():
    sheet = make_sheet(deploy("llama-3-8b"), UniformTraffic(32_768, 300), slo=Slo(ttft_s=60.0, tpot_s=10.0))
    row = next(row for row in sheet.to_dict()["prefill"] if row["prompt_tokens"] == 32_768)
    assert any(line.startswith("prefill") and line.endswith(f"by {row['bound_by']}") for line in sheet.answer)


def test_cached_tokens_have_no_scores_of_their_own():
    sheet = make_sheet(deploy("llama-3-8b"), UniformTraffic(2000, 300, cached_tokens=1500))
    assert sheet.fact("score_bytes").value == 32 * 32 * 500 * 2000 * 2


def test_requests_longer_than_the_model_is_made_for_are_noted_and_not_tabled():
    engine = deploy("llama-3-8b")
    short = replace(engine, architecture=replace(engine.architecture, max_model_len=2048))
    page = make_sheet(short, UniformTraffic(2000, 300)).to_dict()
    assert any("2,300 tokens are more than" in note for note in page["notes"])
    assert [row["context_tokens"] for row in page["kv_cache"]] == [2048]
    assert not any("more than the model" in note for note in make_sheet(engine).to_dict()["notes"])


def test_a_model_for_very_short_contexts_has_tables_too():
    engine = deploy("llama-3-8b")
    short = replace(engine, architecture=replace(engine.architecture, max_model_len=100))
    page = make_sheet(short, UniformTraffic(50, 20)).to_dict()
    assert [row["prompt_tokens"] for row in page["prefill"]] == [100]


def test_replicas_are_rounded_up():
    fact = SHEETS["dense"].fact("replicas")
    assert evaluated(fact.formula) <= fact.value < evaluated(fact.formula) + 1


def test_a_model_that_does_not_fit_says_so_and_still_shows_its_phases():
    sheet = make_sheet(deploy("llama-3-70b"))
    assert sheet.answer[0].startswith("does not fit")
    assert sheet.fact("prefill_s").value > 0
    assert sheet.fact("limit").value.startswith("memory")


def test_targets_that_nothing_meets_are_said_to_be_out_of_reach():
    sheet = make_sheet(deploy("llama-3-8b"), slo=Slo(ttft_s=0.001, tpot_s=0.05))
    assert any("none within these targets" in line for line in sheet.answer)


def test_a_stream_at_50_ms_per_token_writes_20_tokens_a_second():
    rows = SHEETS["dense"].to_dict()["decode"]
    assert all(row["stream_tokens_per_s"] * row["tpot_s"] == pytest.approx(1) for row in rows)
    assert significant(1 / 0.050) == "20"


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "tokens", "whole_s"),
    [(0.400, 0.025, 200, 5.375), (0.0, 0.080, 500, 39.92), (0.3, 0.05, 1, 0.3)],
)
def test_a_request_is_its_first_token_and_a_step_for_each_other(ttft_s, tpot_s, tokens, whole_s):
    assert request_s(ttft_s, tpot_s, tokens) == pytest.approx(whole_s)


def test_what_a_way_to_run_a_model_leaves_out_is_noted():
    assert any("no units for fp8" in note for note in deploy(gpu="A100", weights="fp8").notes)
    notes = deploy("deepseek-v3", gpus=16).notes
    assert any("between hosts" in note for note in notes)
    assert any("latent KV cache is on every device" in note for note in notes)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (significant(0.0012345), "0.00123"),
        (significant(19_960.0), "20,000"),
        (significant(0), "0"),
        (duration(0.0000351), "35.1 µs"),
        (duration(0.25), "250 ms"),
        (duration(61.26), "61.3 s"),
        (size(327_680), "328 kB"),
        (size(1.5e12), "1.5 TB"),
        (power(68_451_000_000), "68.45e9"),
        (power(8192), "8,192"),
        (power(3.35e12), "3.35e12"),
        (power(7.97), "7.97"),
    ],
)
def test_figures_are_short_and_have_their_unit(written, expected):
    assert written == expected

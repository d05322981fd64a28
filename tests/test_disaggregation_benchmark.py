"""The pieces of benchmarks/disaggregation.py that judge and draw."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest

from phasewise.engines.vllm import parse_metrics
from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
RECORD = BENCHMARKS / "records" / "disaggregation.json"
PAGE = ROOT / "docs" / "how-to" / "disaggregate-prefill-and-decode.md"
OWN_MODULES = {"disaggregation", "kv_transfers", "resuming", "stress"}


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [it for it in sys.modules if it.partition(".")[0] in OWN_MODULES]:
        monkeypatch.delitem(sys.modules, name)
    import disaggregation

    return disaggregation


def make_block(benchmark, worst_gap_s):
    times_s = [[-0.5, 0.1, 0.2, 0.2 + worst_gap_s], [-0.05, 0.0, 0.05]]
    long_prompt = sys.modules["kv_transfers.load"].LongPrompt(0.5, 2.5)
    return benchmark.Block(1000.0, 10.0, times_s, [long_prompt])


def make_round(benchmark, **worst_gaps_s):
    return {
        arm: make_block(benchmark, worst_gap_s)
        for arm, worst_gap_s in zip(benchmark.Arm, worst_gaps_s.values(), strict=True)
    }


def make_trace(tokens_s, kinds, kv_transfers_s=()):
    lanes = {f"engine-{number}": [[0.0, 4.0, kind]] for number, kind in enumerate(kinds)}
    return {
        "ended_s": 10.0,
        "tokens_s": tokens_s,
        "longs_s": [[1.0, 5.0]],
        "lanes": lanes,
        "kv_transfers_s": list(kv_transfers_s),
    }


def counters(local, external, moved):
    return parse_metrics(
        "# TYPE vllm:prompt_tokens_by_source_total counter\n"
        f'vllm:prompt_tokens_by_source_total{{source="local_compute"}} {local}\n'
        f'vllm:prompt_tokens_by_source_total{{source="external_kv_transfer"}} {external}\n'
        "# TYPE vllm:nixl_bytes_transferred histogram\n"
        f'vllm:nixl_bytes_transferred_bucket{{le="+Inf"}} {1 if moved else 0}\n'
        f"vllm:nixl_bytes_transferred_count {1 if moved else 0}\n"
        f"vllm:nixl_bytes_transferred_sum {moved}\n",
        0.0,
    )


def record(kind, worker="decode-0", **fields):
    return {"attempts": [{"kind": kind, "worker": [worker, "1"]}], **fields}


def test_gaps_count_where_they_end_within_the_window(benchmark):
    block = make_block(benchmark, 3.0)
    assert sorted(block.gaps_s) == pytest.approx([0.05, 0.1, 0.6, 3.0])


def test_ratios_are_to_the_mean_of_both_mixed_blocks_of_the_same_round(benchmark):
    rounds = [
        make_round(benchmark, mixed=4.0, again=6.0, disaggregated=1.0, deciding=2.5),
        make_round(benchmark, mixed=8.0, again=12.0, disaggregated=2.0, deciding=5.0),
    ]
    reported = benchmark.figures(rounds)
    assert reported["worst_gap_ratio_disaggregated"] == pytest.approx(0.2)
    assert reported["worst_gap_ratio_deciding"] == pytest.approx(0.5)
    assert reported["worst_gap_aa"] == {"ratio": 1.5, "low": 1.5, "high": 1.5}
    assert reported["worst_gap_ms"]["mixed"] == [4000.0, 8000.0]


def test_one_round_gives_no_bounds(benchmark):
    reported = benchmark.figures(
        [make_round(benchmark, mixed=4.0, again=4.0, disaggregated=1.0, deciding=1.0)]
    )
    assert reported["worst_gap_disaggregated"] == {"ratio": 0.25, "low": None, "high": None}


def test_engines_stay_up_from_one_round_into_the_next(benchmark):
    layouts = [layout for _, layout in benchmark.turns(3)]
    assert layouts == ["mixed", "disaggregated", "disaggregated", "mixed", "mixed", "disaggregated"]


def test_prompt_tokens_computed_on_the_decode_side_are_recomputed_unless_whole_requests_explain_them(
    benchmark,
):
    proof = benchmark.Proof()
    records = [
        record("decode_side", **{"in": 6_000}),
        record("local", **{"in": 100, "cached": 30}),
        record("local", "prefill-0", **{"in": 900}),
    ]
    proof.add(counters(50, 0, 0), counters(620, 6_000, 141_000_000), records, "decode-0")
    assert proof.recomputed_prompt_tokens == 620 - 50 - 70
    assert (proof.kv_transfers, proof.transferred_tokens, proof.kv_bytes) == (1, 6_000, 141_000_000)


def test_an_engine_that_does_not_count_is_no_proof(benchmark):
    with pytest.raises(SystemExit, match="does not count"):
        benchmark.Proof().add(counters(0, 0, 0), parse_metrics("", 1.0), [], "decode-0")


def test_steps_of_a_kind_are_drawn_as_one_stretch(benchmark):
    from tests.builders import EPOCH_S, make_step

    trace = sys.modules["kv_transfers.trace"]
    block = benchmark.Block(EPOCH_S, 10.0, [[0.0]], [])
    steps = [
        make_step(number, 0.1 * number, prompt=prompt) for number, prompt in enumerate([0, 0, 1, 900, 0, 0])
    ]
    assert trace.stretches(steps, block) == [
        [0.0, 0.2, "decode"],
        [0.2, 0.3, "prefill"],
        [0.3, 0.5, "decode"],
    ]


def test_picture_tells_both_arms_longest_gaps_and_where_kv_came_in(benchmark):
    traces = {
        "mixed": make_trace([0.1, 0.2, 4.5], ["prefill", "decode"]),
        "disaggregated": make_trace([0.1, 0.2, 0.28], ["prefill", "decode"], [2.0]),
    }
    drawn = benchmark.draw(traces)
    summary = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    words = " ".join("".join(summary.itertext()).split())
    assert "both phases: longest gap 4,300 ms" in words
    assert "writes answers: longest gap 100 ms" in words
    assert drawn.count('class="kv-transfer" d=') == 1


def test_table_has_ratios_with_their_bounds(benchmark):
    rounds = [
        make_round(benchmark, mixed=40.0, again=40.0, disaggregated=2.0, deciding=1.0),
        make_round(benchmark, mixed=80.0, again=80.0, disaggregated=4.0, deciding=3.0),
    ]
    mixed, always, auto = benchmark.table(benchmark.figures(rounds)).splitlines()[2:]
    assert mixed.split(" | ")[1:3] == ["60,000 ms", ""]
    assert always.split(" | ")[2] == "5.0% (5.0 to 5.0)"
    assert auto.split(" | ")[2].startswith("3.1% (")


def test_page_has_the_figures_and_the_picture_of_the_record(benchmark):
    """Mended by: python benchmarks/disaggregation.py --redraw RECORD --picture PICTURE, as named above."""
    kept = json.loads(RECORD.read_text())
    assert benchmark.table(kept["figures"]) in PAGE.read_text()
    assert benchmark.draw(kept["traces"]) == PAGE.with_suffix(".svg").read_text()

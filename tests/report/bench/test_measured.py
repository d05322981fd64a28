from __future__ import annotations

import pytest

from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, Spacing
from phasewise.benchmark.workload.drafts import Conversations, Written
from phasewise.benchmark.workload.plan import PlanSpec, fitted
from phasewise.benchmark.workload.presets import PRESETS, Lengths, PresetName
from phasewise.benchmark.workload.traces import Trace
from phasewise.report.bench.measured import load_in_words, workload_in_words


@pytest.mark.parametrize(
    ("load", "alone", "with_conversations"),
    [
        (ClosedLoop(8), "8 at once", "8 conversations at once"),
        (OpenLoop(2.5), "2.5 req/s", "2.5 conversations/s"),
        (OpenLoop(5.0, Spacing.CONSTANT), "5 req/s (constant)", "5 conversations/s (constant)"),
        (
            OpenLoop(5.0, Spacing.GAMMA, 4.0),
            "5 req/s (gamma, burstiness 4)",
            "5 conversations/s (gamma, burstiness 4)",
        ),
    ],
)
def test_a_load_names_what_arrives(load, alone, with_conversations):
    assert load_in_words(load) == alone
    assert load_in_words(load, conversations=True) == with_conversations


def test_a_replay_is_named_by_its_speed():
    assert load_in_words(Replay(2.0)) == "the trace's times, 2x"


def test_a_workload_is_described_as_asked_until_a_plan_says_what_became_of_it():
    rag = PRESETS[PresetName.RAG]
    spec = PlanSpec(rag, ClosedLoop(1), 4, conversations=Conversations(3, 1.0))
    asked = workload_in_words(spec)
    assert asked.startswith("prompts of about 2,400 (768 to 6,144) tokens, outputs of about 96 (16 to 384)")
    assert asked.endswith("100% with a system prompt of 256 tokens, conversations of 3 turns")
    planned = workload_in_words(spec, fitted(rag, 2048))
    assert planned.startswith("prompts of about 1,600 (768 to 1,600) tokens")


def test_fixed_lengths_are_plain_numbers():
    spec = PlanSpec(PRESETS[PresetName.BATCH], ClosedLoop(1), 4)
    shape = PRESETS[PresetName.BATCH]
    fixed = workload_in_words(spec, type(shape)("t.", Lengths.fixed(1000), Lengths.fixed(20)))
    assert fixed == "prompts of 1,000 tokens, outputs of 20"


def test_a_trace_is_named():
    assert workload_in_words(PlanSpec(Trace("azure", ()), Replay())) == "the trace azure"


def test_written_prompts_are_counted_and_described():
    several = Written("a story", ("Tell one.", "Tell another."), 80)
    assert workload_in_words(PlanSpec(several, ClosedLoop(1), 4)) == (
        "2 written prompts (a story), outputs of 80 tokens"
    )
    alone = Written("a story", ("Tell one.",), 80)
    assert workload_in_words(PlanSpec(alone, ClosedLoop(1), 4)).startswith("a written prompt (a story)")

"""What a step carries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.costs.fit.observation import Observation
from phasewise.costs.fit.step import StepKind, StepWork, chunk_pairs, decoding, prefilling


@given(st.integers(1, 60), st.integers(0, 60))
def test_every_token_of_a_chunk_attends_to_all_before_it_and_to_itself(tokens, context_tokens):
    assert chunk_pairs(tokens, context_tokens) == sum(
        context_tokens + position for position in range(1, tokens + 1)
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_chunks_of_a_prompt_attend_as_much_as_the_prompt_in_one(chunks):
    done, pairs = 0, 0
    for tokens in chunks:
        pairs += prefilling(tokens, done).attention_token_pairs
        done += tokens
    assert pairs == prefilling(done).attention_token_pairs


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (prefilling(5), StepKind.PREFILL),
        (decoding([5, 6]), StepKind.DECODE),
        (StepWork(prompt_tokens=5, decode_tokens=1, requests=2), StepKind.MIXED),
    ],
)
def test_a_step_is_named_after_the_phases_it_serves(work, kind):
    assert work.kind is kind


def test_without_its_prompts_a_step_only_decodes():
    work = StepWork(
        prompt_tokens=100, decode_tokens=2, requests=3, attention_token_pairs=5050, kv_read_tokens=30
    )
    assert work.without_prompts() == decoding([10, 20])
    assert work.tokens == 102


def test_an_observation_of_steps_of_both_phases_is_mixed():
    both = Observation((prefilling(4), decoding([5])), 1.0)
    assert both.kind is StepKind.MIXED
    assert Observation((prefilling(4), prefilling(4, 4)), 1.0).kind is StepKind.PREFILL


def test_the_typical_step_of_an_observation_is_the_mean_one():
    assert Observation((decoding([10]), decoding([30, 20, 10])), 1.0).typical == decoding([20, 15])

"""The presets have the shape that was measured on the real engine, and either phase can be slowed down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench_power import PhaseScaled
from phasewise.core.errors import ConfigError
from phasewise.costs.fit.step import StepWork
from phasewise.simulator.requests import preset

CHUNK = 2048


def prefill_s(tokens):
    """A prompt alone, in chunks as the engine cuts them."""
    total_s = 0.0
    for start in range(0, tokens, CHUNK):
        chunk = min(CHUNK, tokens - start)
        pairs = chunk * start + chunk * (chunk + 1) // 2
        work = StepWork(prompt_tokens=chunk, requests=1, attention_token_pairs=pairs)
        total_s += preset("cpu-demo")(work)
    return total_s


def decode_s(batch, context=50):
    work = StepWork(decode_tokens=batch, requests=batch, kv_read_tokens=batch * context)
    return preset("cpu-demo")(work)


@pytest.mark.parametrize(
    ("tokens", "measured_s"),
    [(256, 0.16), (512, 0.40), (1024, 0.88), (2000, 2.15), (4000, 4.75), (6000, 9.3)],
)
def test_cpu_demo_prefills_about_as_the_real_engine_does(tokens, measured_s):
    assert prefill_s(tokens) == pytest.approx(measured_s, rel=0.2)


@pytest.mark.parametrize(("batch", "measured_s"), [(1, 0.067), (4, 0.050), (16, 0.060), (32, 0.094)])
def test_cpu_demo_decodes_about_as_the_real_engine_does(batch, measured_s):
    assert decode_s(batch) == pytest.approx(measured_s, rel=0.3)


def test_long_contexts_slow_decode_down():
    assert decode_s(16, context=1024) == pytest.approx(0.097, rel=0.2)


def test_fast_steps_take_about_a_millisecond():
    assert preset("fast")(StepWork(decode_tokens=8, requests=8, kv_read_tokens=4000)) == pytest.approx(
        1e-3, rel=0.1
    )


def test_an_unknown_preset_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"'gpu'.*accepted: cpu-demo, fast"):
        preset("gpu")


MIXED = StepWork(
    prompt_tokens=300, decode_tokens=4, requests=5, attention_token_pairs=45_150, kv_read_tokens=900
)
PROMPTS_ONLY = StepWork(prompt_tokens=300, requests=1, attention_token_pairs=45_150)
DECODES_ONLY = StepWork(decode_tokens=4, requests=4, kv_read_tokens=900)


@pytest.mark.parametrize("name", ["cpu-demo", "fast"])
def test_a_slower_prefill_raises_what_the_prompts_add_to_a_step(name):
    cost = preset(name)
    slower = PhaseScaled(cost, prefill=1.1)
    assert slower(MIXED) - cost(MIXED) == pytest.approx(0.1 * (cost(MIXED) - cost(DECODES_ONLY)))
    assert slower(PROMPTS_ONLY) == pytest.approx(1.1 * cost(PROMPTS_ONLY))
    assert slower(DECODES_ONLY) == cost(DECODES_ONLY)


@pytest.mark.parametrize("name", ["cpu-demo", "fast"])
def test_a_slower_decode_raises_the_rest(name):
    cost = preset(name)
    slower = PhaseScaled(cost, decode=1.1)
    assert slower(MIXED) - cost(MIXED) == pytest.approx(0.1 * cost(DECODES_ONLY))
    assert slower(PROMPTS_ONLY) == cost(PROMPTS_ONLY)
    assert slower(DECODES_ONLY) == pytest.approx(1.1 * cost(DECODES_ONLY))


works = st.builds(
    StepWork,
    prompt_tokens=st.integers(0, 500),
    decode_tokens=st.integers(0, 500),
    requests=st.integers(1, 600),
    attention_token_pairs=st.integers(0, 10**6),
    kv_read_tokens=st.integers(0, 10**6),
)


@given(work=works, factor=st.floats(0.5, 3.0))
def test_both_phases_slower_alike_make_the_whole_step_slower(work, factor):
    cost = preset("cpu-demo")
    assert PhaseScaled(cost, factor, factor)(work) == pytest.approx(factor * cost(work))


def test_any_function_of_the_work_can_be_scaled():
    scaled = PhaseScaled(lambda work: 1.0 + work.prompt_tokens, prefill=2.0)
    assert scaled(StepWork(prompt_tokens=3, decode_tokens=1, requests=2)) == 1.0 + 2.0 * 3

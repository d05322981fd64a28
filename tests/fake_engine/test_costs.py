"""The presets have the shape that was measured on the real engine."""

import pytest

from phasewise.errors import ConfigError
from phasewise.fake_engine.costs import StepWork, preset

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

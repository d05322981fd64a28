"""The options of a load: what they choose, what excludes what, and how functions take them."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Unpack, get_type_hints

import pytest

from phasewise.api.load_options import (
    LoadArguments,
    LoadOptions,
    MeasurementArguments,
    MeasurementOptions,
    takes_load_options,
)
from phasewise.benchmark.workload.arrivals import ClosedLoop, OpenLoop, Replay, Spacing
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.timeline_record import encode
from tests.builders import make_timeline


def options(**given):
    return LoadOptions.of(given)


def test_explicit_lengths_take_the_presets_place():
    given = {"output_tokens": 20, "shared_prefix_tokens": 100, "shared_prefixes": 3}
    shape = options(preset="rag", prompt_tokens=300, **given).source()
    assert (shape.prompt.median_tokens, shape.prompt.spread) == (300, 0.0)
    assert (shape.output.median_tokens, shape.output.spread) == (20, 0.0)
    assert (shape.shared_prefix_tokens, shape.shared_share, shape.shared_prefixes) == (100, 1.0, 3)
    assert options(preset="rag").source() == PRESETS[PresetName.RAG]


def test_a_fixed_prompt_has_no_system_prompt_unless_asked_for():
    assert options(preset="codegen", prompt_tokens=100).source().shared_prefix_tokens == 0


@pytest.mark.parametrize("shared_tokens", [-1, 100, 500])
def test_a_shared_prefix_must_leave_room_for_the_rest(shared_tokens):
    with pytest.raises(ConfigError, match="does not fit prompts of 100"):
        options(prompt_tokens=100, shared_prefix_tokens=shared_tokens).source()


def test_rate_and_concurrency_exclude_each_other():
    assert options(rate=2.0, spacing="constant").load() == OpenLoop(2.0, Spacing.CONSTANT)
    assert options(rate=2.0, spacing="gamma", burstiness=4.0).load() == OpenLoop(2.0, Spacing.GAMMA, 4.0)
    assert options(concurrency=7).load() == ClosedLoop(7)
    assert options().load() == ClosedLoop(4)
    with pytest.raises(ConfigError, match="give only one of them"):
        options(rate=1.0, concurrency=1).load()


def test_a_trace_keeps_its_own_times_unless_a_load_is_given():
    assert options(trace="t.csv", speed=2.0).load() == Replay(2.0)
    assert options(trace="t.csv", speed=2.0, rate=3.0).load() == OpenLoop(3.0)
    assert options(trace="t.csv", speed=2.0, concurrency=5).load() == ClosedLoop(5)


def test_a_trace_and_lengths_exclude_each_other(tmp_path):
    words = "--trace was given together with --prompt-tokens, --output-tokens or a shared prefix"
    with pytest.raises(ConfigError, match=words):
        options(trace=tmp_path / "t.csv", prompt_tokens=100).source()


def test_recorded_timelines_are_a_trace(tmp_path):
    file, said = tmp_path / "recorded.ndjson", []
    known = make_timeline(prompt_tokens=40, output_tokens=3)
    unknown = replace(known, prompt_tokens=None, prompt_bytes=None)
    file.write_bytes(b"".join(encode(timeline) + b"\n" for timeline in (known, known, unknown))[:-5])
    trace = options(trace=file).source(said.append)
    assert (trace.name, [request.prompt_tokens for request in trace.requests]) == ("recorded", [40, 40])
    assert said == [f"the last line of {file} is incomplete and was left out"]
    file.write_bytes(b"".join(encode(timeline) + b"\n" for timeline in (known, unknown)))
    assert len(options(trace=file).source(said.append).requests) == 1
    assert said[1:] == ["1 requests of unknown length were left out"]


def test_one_turn_is_no_conversation():
    assert options(turns=1).conversations() is None
    assert options(turns=3, think=0.5).conversations().turns == 3
    with pytest.raises(ConfigError, match="--turns 0"):
        options(turns=0).conversations()


def test_objectives_that_are_not_named_are_the_default_ones():
    assert options(slo="ttft=300ms").objectives() == replace(Slo(1.0, 0.1), ttft_s=0.3)


def test_arguments_and_options_have_the_same_names():
    assert list(get_type_hints(LoadArguments)) == [field.name for field in fields(LoadOptions)]
    assert list(get_type_hints(MeasurementArguments)) == [field.name for field in fields(MeasurementOptions)]


def test_a_function_shows_the_options_that_it_takes_and_rejects_others():
    @takes_load_options(LoadOptions, without={"duration"})
    def send(url: str, *, times: int = 1, **given: Unpack[LoadArguments]) -> LoadArguments:
        return given

    shown = inspect.signature(send).parameters
    names = [field.name for field in fields(LoadOptions) if field.name != "duration"]
    assert list(shown) == ["url", *names, "times"]
    assert (shown["turns"].default, shown["seed"].default) == (1, None)
    assert send("http://a", rate=1.0) == {"rate": 1.0}
    for wrong in ("duration", "rates"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            send("http://a", **{wrong: 1.0})

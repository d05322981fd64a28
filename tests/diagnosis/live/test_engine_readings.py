"""An engine's counters become rates between its last readings."""

import pytest

from phasewise.core.engine_metrics import LoadReading
from phasewise.diagnosis.live.engine_readings import EngineReadings


def readings_of(*readings):
    found = EngineReadings()
    for reading in readings:
        found.add(reading)
    return found


def reading(at_s, steps, running=2, **fields):
    return LoadReading(at_unix_s=at_s, running=running, waiting=1, kv_usage=0.5, steps=steps, **fields)


def test_a_step_takes_the_time_between_readings_over_the_steps_made_while_it_had_requests():
    busy = readings_of(reading(0.0, 100), reading(1.0, 150), reading(2.0, 200))
    assert busy.engine("a").step_s == pytest.approx(0.02)
    idle = readings_of(reading(0.0, 100, running=0), reading(5.0, 100, running=0))
    assert idle.engine("a").step_s is None


def test_prefix_hits_are_the_share_of_the_tokens_asked_for_lately():
    vllm = readings_of(
        reading(0.0, 1, prefix_queries=100.0, prefix_hits=90.0),
        reading(1.0, 2, prefix_queries=200.0, prefix_hits=110.0),
    )
    assert vllm.engine("a").prefix_hits == pytest.approx(0.2)
    llama = readings_of(
        reading(0.0, 1, prompt_tokens=10.0, prefix_hits=0.0),
        reading(1.0, 2, prompt_tokens=40.0, prefix_hits=10.0),
    )
    assert llama.engine("a").prefix_hits == pytest.approx(0.25)


def test_a_restarted_engine_begins_again():
    found = readings_of(reading(0.0, 100), reading(1.0, 150), reading(2.0, 3))
    assert (found.engine("a").step_s, len(found.kept)) == (None, 1)


def test_without_a_reading_nothing_is_made_up():
    engine = EngineReadings().engine("a", open_requests=3)
    assert (engine.running, engine.kv_usage, engine.open_requests) == (None, None, 3)

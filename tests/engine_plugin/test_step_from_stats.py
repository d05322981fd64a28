"""What vLLM says about a step becomes one tuple, whatever is missing."""

import pytest
from phasewise_engine_plugin.ring import STEP_FIELDS
from phasewise_engine_plugin.steps import client_request_id, finished_request, step_from_stats
from vllm_stand_ins import (
    make_details,
    make_finished,
    make_iteration_stats,
    make_nixl_stats,
    make_scheduler_stats,
)


def read(scheduler_stats, iteration_stats, last_load=(0, 0, 0.0), now=5.0):
    step = step_from_stats(scheduler_stats, iteration_stats, 0, last_load, lambda: now)
    return dict(zip(STEP_FIELDS, step, strict=True))


def test_step_with_everything():
    step = read(
        make_scheduler_stats(make_details(prompt_tokens=2047), running=2, waiting=1, deferred=3),
        make_iteration_stats(at=9.25, first_tokens=1, preempted=1, finished=[make_finished()]),
    )
    assert step["at"] == 9.25
    assert (step["it"], step["prompt_tokens"], step["prompt_requests"]) == (7, 2047, 1)
    assert (step["decode_tokens"], step["decode_requests"]) == (1, 1)
    assert (step["running"], step["waiting"], step["kv"]) == (2, 4, 0.25)
    assert (step["preempted"], step["first_tokens"]) == (1, 1)
    assert step["finished"][0].id == "chatcmpl-abc"


def test_middle_chunk_of_a_prefill_has_no_output_and_takes_our_clock():
    step = read(make_scheduler_stats(make_details(prompt_tokens=2048, decode_tokens=0)), None, now=42.0)
    assert (step["at"], step["prompt_tokens"], step["finished"]) == (42.0, 2048, ())


def test_without_the_details_flag_tokens_are_unknown_not_zero():
    step = read(make_scheduler_stats(None), make_iteration_stats())
    assert step["it"] is step["prompt_tokens"] is step["decode_tokens"] is step["decode_requests"] is None


def test_step_without_scheduler_stats_keeps_the_last_load():
    step = read(None, make_iteration_stats(), last_load=(3, 2, 0.5))
    assert (step["running"], step["waiting"], step["kv"]) == (3, 2, 0.5)


def test_phase_that_was_never_reached_has_no_duration():
    finished = finished_request(make_finished(prefill_time=-812.0, decode_time=0.0))
    assert finished.prefill_s is None
    assert finished.decode_s == 0.0


def test_ids_are_those_the_client_saw():
    assert client_request_id("chatcmpl-a-1") == "chatcmpl-a-1"
    assert client_request_id("cmpl-a-1-0") == "cmpl-a-1"
    assert client_request_id("cmpl-0") == "cmpl-0"
    assert client_request_id("resp_a_0") == "resp_a"
    assert client_request_id("resp_0") == "resp_0"


def test_transfers_that_ended_in_the_step_are_reported_with_time_and_size():
    reported = make_nixl_stats([0.0125, 0.02], [35_400_000, 23_000])
    step = read(make_scheduler_stats(make_details(), kv_connector_stats=reported), make_iteration_stats())
    assert step["transfers"] == ((0.0125, 35_400_000), (0.02, 23_000))


@pytest.mark.parametrize(
    "reported",
    [
        None,
        {},
        {"NixlConnector": {"data": make_nixl_stats([0.1], [1])}},
        make_nixl_stats([0.1, 0.2], [1]),
        {"transfer_duration": 0.1, "bytes_transferred": 1},
        {"transfer_duration": ["soon"], "bytes_transferred": [1]},
        ["transfer_duration", "bytes_transferred"],
    ],
    ids=["nothing", "empty", "of several connectors", "uneven", "not lists", "not numbers", "a list"],
)
def test_connector_that_reports_in_another_form_has_no_transfer(reported):
    step = read(make_scheduler_stats(make_details(), kv_connector_stats=reported), make_iteration_stats())
    assert step["transfers"] == ()


def test_engine_without_connector_statistics_has_no_transfer():
    assert read(make_scheduler_stats(make_details()), make_iteration_stats())["transfers"] == ()

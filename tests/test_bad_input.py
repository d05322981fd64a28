"""What benchmarks/bad_input.py would tell of a gateway that fails: its checks can fail."""

from __future__ import annotations

from random import Random

import orjson

from benchmarks.hostile import bodies, raw
from benchmarks.hostile.cases import CANARIES, RawCase
from benchmarks.hostile.judge import REFERENCE, Tally, documented_errors
from phasewise.core.errors import RequestRejected
from phasewise.core.request import Endpoint
from phasewise.gateway.api.fields import parse_body
from phasewise.gateway.http_errors import HTTP_ERRORS

RNG = Random(1)  # noqa: S311 - the same cases each time


def test_another_tenants_word_in_an_answer_is_a_leak():
    tally = Tally()
    case = bodies.valid(RNG, "a")
    tally.answered(case, 200, CANARIES["a"].encode())
    assert (tally.own_words_seen, tally.cross_tenant_leaks) == (1, 0)
    tally.answered(case, 200, CANARIES["b"].encode())
    assert tally.cross_tenant_leaks == 1


def test_an_error_of_ours_counts_unless_its_code_is_documented():
    tally = Tally()
    case = bodies.wrong_value(RNG, "a")
    tally.answered(case, 503, orjson.dumps({"error": {"code": "queue_full"}}))
    assert (tally.undocumented_5xx, dict(tally.documented_5xx)) == (0, {"queue_full": 1})
    for status, body in ((500, b"Internal Server Error"), (500, b'{"error":{"code":"queue_full"}}')):
        tally.answered(case, status, body)
    assert tally.undocumented_5xx == 2


def test_an_error_counts_as_documented_only_if_the_reference_names_it():
    page = "| code | status | when |\n|---|---|---|\n| `queue_full` | 503 | every worker is full |\n"
    assert documented_errors(page) == {("queue_full", 503)}
    reported = {(kind.value, error.status) for kind, error in HTTP_ERRORS.items()}
    assert documented_errors(REFERENCE.read_text()) == reported


def test_a_valid_request_that_is_rejected_and_a_wrong_one_that_is_served_are_not_as_expected():
    tally = Tally()
    tally.answered(bodies.valid(RNG, "a"), 400, b"{}")
    tally.answered(bodies.admin_by_client(RNG, "a"), 200, b"{}")
    assert sorted(tally.not_as_expected) == ["admin_by_client: 200", "valid: 400"]
    assert tally.admin_opened == 1
    assert (tally.valid, tally.valid_answered_200) == (1, 0)


def test_a_smuggled_request_that_is_answered_is_not_as_expected():
    tally = Tally()
    tally.answered_raw(RawCase("both_lengths", b"", (400,)), 400, answers=2, body=b"")
    assert tally.not_as_expected


def test_valid_cases_pass_our_own_checks_and_wrong_ones_do_not():
    for _ in range(200):
        case = bodies.valid(RNG, "b")
        assert parse_body(Endpoint(case.path), case.body).model
    for make in (bodies.engine_control, bodies.hidden_control, bodies.not_json, bodies.too_deep):
        for _ in range(50):
            try:
                parse_body(Endpoint.CHAT, make(RNG, "b").body)
            except RequestRejected:
                continue
            raise AssertionError(f"{make.__name__} made a body that is taken")


def test_the_same_seed_makes_the_same_cases():
    first, again = (bodies.draw(Random(7), 50) for _ in range(2))  # noqa: S311
    assert first == again
    first_raw, raw_again = (raw.draw(Random(7), 50) for _ in range(2))  # noqa: S311
    assert first_raw == raw_again

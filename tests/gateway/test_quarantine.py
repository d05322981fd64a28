"""Prompts that end engines are rejected, and those that merely ran beside them are not for long."""

from __future__ import annotations

import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.timeline import Outcome
from phasewise.fake_engine.engine import FakeEngineConfig
from phasewise.fake_engine.faults import Fault, FaultKind
from phasewise.fake_engine.fleet import running_engines
from phasewise.gateway import quarantine as module
from phasewise.gateway.quarantine import FEW, SUSPECT_S, Quarantine
from tests.builders import make_attempt, make_timeline
from tests.gateway.harness import eventually, running_gateway

A, B, C, D = (make_attempt(worker=name).worker for name in "abcd")


class Book:
    """A quarantine with a clock and deaths of the test's own."""

    def __init__(self, for_s=600.0):
        self.now_s = 0.0
        self.dead = {A, B, C, D}
        self.kept = Quarantine(for_s, self.dead.__contains__, lambda: self.now_s)

    def fail(self, *bodies, engines=(A, B), tenant="t", content=()):
        attempts = tuple(make_attempt(worker=ref.name, outcome=Outcome.FAILED) for ref in engines)
        timeline = make_timeline(attempts=attempts, content_times_s=content)
        found = [self.kept.failed(tenant, body, timeline) for body in bodies]
        if found[0] is not None:
            self.kept.judge(found[0])

    def rejects(self, body, tenant="t"):
        try:
            self.kept.check(tenant, body)
        except RequestRejected as rejection:
            return rejection.kind is RejectionKind.QUARANTINED
        return False


def test_a_prompt_with_which_two_engines_died_is_rejected_for_a_while():
    book = Book()
    book.fail(b"poison")
    assert book.rejects(b"poison")
    assert not book.rejects(b"other")
    assert not book.rejects(b"poison", tenant="somebody else")
    book.now_s = 600.0
    assert not book.rejects(b"poison")
    assert not book.kept.guilty


@pytest.mark.parametrize("engines", [(A,), (A, A), ()])
def test_one_engine_is_no_proof(engines):
    book = Book()
    book.fail(b"poison", engines=engines)
    assert not book.rejects(b"poison")


def test_engines_that_live_prove_nothing():
    book = Book()
    book.dead.discard(B)
    book.fail(b"poison")
    assert not book.rejects(b"poison")


def test_an_answer_that_had_begun_proves_nothing():
    book = Book()
    book.fail(b"poison", content=(0.5,))
    assert not book.rejects(b"poison")


def test_of_many_only_those_that_come_again_are_guilty():
    book = Book()
    crowd = [b"bystander %d" % number for number in range(FEW)]
    book.fail(b"poison", *crowd)
    assert not any(map(book.rejects, [b"poison", *crowd]))
    book.fail(b"poison", *[b"new %d" % number for number in range(FEW)], engines=(C, D))
    assert book.rejects(b"poison")
    assert not any(map(book.rejects, crowd))


def test_a_suspicion_ends():
    book = Book()
    crowd = [b"%d" % number for number in range(FEW + 1)]
    book.fail(*crowd)
    book.now_s = SUSPECT_S + 1
    book.fail(*crowd, engines=(C, D))
    assert not any(map(book.rejects, crowd))


def test_it_can_be_switched_off_and_is_bounded(monkeypatch):
    off = Book(for_s=0.0)
    off.fail(b"poison")
    assert not off.rejects(b"poison")
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    book = Book()
    for number in range(5):
        book.now_s = float(number)
        book.fail(b"%d" % number)
    assert [book.rejects(b"%d" % number) for number in range(5)] == [False, False, False, True, True]


async def test_a_prompt_that_kills_engines_kills_two_and_no_more(monkeypatch):
    monkeypatch.setattr("phasewise.gateway.api.pipeline.SURE_AFTER_S", 10.0)
    deadly = FakeEngineConfig(faults=(Fault(FaultKind.POISON, marker="poison"),))
    async with running_engines(3, deadly) as engines, running_gateway(engines) as gateway:
        assert (await gateway.chat("poison")).status == 503
        kept = gateway.app.gateway.pipeline._driver.quarantine.guilty
        await eventually(lambda: len(kept) == 1)
        assert (await gateway.chat("poison")).status == 422
        assert (await gateway.chat("something else")).status == 200

"""The book against a naive one that keeps levels as exact fractions, and by hand at its edges."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from phasewise.core.ports import Lease, LimitKind, OverLimit
from phasewise.core.request import Limits
from phasewise.scheduling.quota_book import CONCURRENCY_RETRY_S, QuotaBook

MINUTE_S = 60
# These divide a minute in microseconds, so that the naive book has no rounding to follow.
EXACT = [1, 2, 3, 5, 12, 60, 600]


class NaiveBucket:
    """How full a bucket is, as a fraction, and since when."""

    def __init__(self, per_minute):
        self.per_minute, self.level, self.at_s = per_minute, Fraction(per_minute), Fraction(0)

    def fill(self, now_s):
        flowed_in = (now_s - self.at_s) * self.per_minute / MINUTE_S
        self.level, self.at_s = min(Fraction(self.per_minute), self.level + flowed_in), now_s

    def wait_s(self, amount):
        missing = min(amount, self.per_minute) - self.level
        return missing * MINUTE_S / self.per_minute

    def change(self, amount):
        self.level = min(Fraction(self.per_minute), self.level - amount)


class BookMachine(RuleBasedStateMachine):
    """Takes and settles of one key at any times."""

    def __init__(self):
        super().__init__()
        self.now_us = 0
        self.open = []

    @precondition(lambda self: not hasattr(self, "limits"))
    @rule(
        requests=st.none() | st.sampled_from(EXACT),
        tokens=st.none() | st.sampled_from(EXACT),
        places=st.none() | st.integers(1, 3),
    )
    def begin(self, requests, tokens, places):
        self.limits = Limits(requests, tokens, places)
        self.book = QuotaBook()
        self.requests = None if requests is None else NaiveBucket(requests)
        self.tokens = None if tokens is None else NaiveBucket(tokens)

    @rule(step_us=st.integers(0, 90_000_000))
    def time_passes(self, step_us):
        self.now_us += step_us

    def naive_waits(self, tokens):
        waits = {}
        for kind, bucket, amount in (
            (LimitKind.REQUESTS, self.requests, 1),
            (LimitKind.TOKENS, self.tokens, tokens),
        ):
            if bucket is not None:
                bucket.fill(Fraction(self.now_us, 10**6))
                waits[kind] = bucket.wait_s(amount)
        if self.limits.max_concurrent is not None and len(self.open) >= self.limits.max_concurrent:
            waits[LimitKind.CONCURRENCY] = Fraction(CONCURRENCY_RETRY_S)
        return {kind: wait for kind, wait in waits.items() if wait > 0}

    @precondition(lambda self: hasattr(self, "limits"))
    @rule(tokens=st.integers(1, 1300))
    def take(self, tokens):
        waits = self.naive_waits(tokens)
        answer = self.book.take("k", self.limits, tokens, self.now_us / 1e6)
        if waits:
            assert isinstance(answer, OverLimit)
            assert answer.kind in waits
            assert answer.retry_after_s == pytest.approx(float(max(waits.values())), abs=1e-9)
            return
        assert isinstance(answer, Lease)
        self.open.append(answer)
        for bucket, amount in ((self.requests, 1), (self.tokens, tokens)):
            if bucket is not None:
                bucket.change(amount)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 100), used=st.none() | st.integers(0, 2000))
    def settle(self, which, used):
        lease = self.open.pop(which % len(self.open))
        self.book.settle(lease, used, self.now_us / 1e6)
        if self.tokens is not None and used is not None:
            self.tokens.fill(Fraction(self.now_us, 10**6))
            self.tokens.change(used - lease.tokens)

    @invariant()
    def sums_hold(self):
        if hasattr(self, "book"):
            self.book.check_invariants()


TestBookMachine = BookMachine.TestCase


@given(
    limits=st.builds(Limits, st.none() | st.integers(1, 10**7), st.none() | st.integers(1, 10**9), st.none()),
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=40),
    now_us=st.integers(0, 10**12),
)
def test_a_rejected_request_passes_at_its_retry_time_and_not_a_microsecond_earlier(limits, sizes, now_us):
    for earlier_us, passes in ((0, True), (1, False)):
        book = QuotaBook()
        for tokens in sizes:
            answer = book.take("k", limits, tokens, now_us / 1e6)
            if isinstance(answer, OverLimit):
                retry_us = now_us + round(answer.retry_after_s * 1e6) - earlier_us
                again = book.take("k", limits, tokens, retry_us / 1e6)
                assert isinstance(again, Lease) is passes
                break


@given(per_minute=st.integers(1, 2_000))
def test_a_full_bucket_pays_for_exactly_its_limit_however_that_divides_a_minute(per_minute):
    book, limits = QuotaBook(), Limits(requests_per_minute=per_minute)
    answers = [book.take("k", limits, 1, 5.0) for _ in range(per_minute + 1)]
    assert all(isinstance(answer, Lease) for answer in answers[:-1])
    assert isinstance(answers[-1], OverLimit)


def test_settling_twice_is_a_mistake_that_shows():
    book = QuotaBook()
    lease = book.take("k", Limits(max_concurrent=1), 1, 0.0)
    book.settle(lease, 1, 0.0)
    with pytest.raises(KeyError):
        book.settle(lease, 1, 0.0)


def test_accounts_of_keys_that_have_gone_quiet_are_forgotten():
    book, limits = QuotaBook(), Limits(requests_per_minute=60, max_concurrent=1)
    kept = book.take("busy", limits, 1, 0.0)
    for number in range(10_000):
        lease = book.take(f"k{number}", limits, 1, number * 1.0)
        book.settle(lease, 1, number * 1.0)
    assert len(book) < 200
    assert isinstance(book.take("busy", limits, 1, 10_000.0), OverLimit)
    book.settle(kept, 1, 10_000.0)
    book.check_invariants()


def test_a_miscount_is_noticed():
    book = QuotaBook()
    book.take("k", Limits(max_concurrent=2), 1, 0.0)
    book._accounts["k"].open = 2
    with pytest.raises(AssertionError, match="slots"):
        book.check_invariants()

"""Counts requests against their keys' limits. The caller passes the time.

A rate limit is a token bucket that holds a minute's worth and fills continuously. Its only state is the time
at which it will be full again: taking an amount moves that time on by what the amount takes to refill, and it
may be at most a minute ahead. The same arithmetic runs inside Redis (clients/redis_quotas.lua).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from phasewise.core.ports import Lease, LimitKind, OverLimit
from phasewise.core.request import Limits

MINUTE_US = 60_000_000
CONCURRENCY_RETRY_S = 1.0
"""The time at which a slot becomes free is unknown, so the client retries after this."""
_FIRST_TIDYING = 64


def cost_us(amount: int, per_minute: int | None) -> int:
    """How long the amount takes to refill; 0 without a limit.

    Rounded down, so that a full bucket pays for exactly its limit however that divides a minute.
    """
    return 0 if per_minute is None else amount * MINUTE_US // per_minute


def over_limit(requests_wait_us: int, tokens_wait_us: int, no_slot: bool) -> OverLimit | None:
    """The limit that delays a request the longest, None if it is within all of them.

    The times are the waits for each bucket, 0 or less if the bucket admits the request.
    """
    waits = (
        (LimitKind.REQUESTS, requests_wait_us / 1e6),
        (LimitKind.TOKENS, tokens_wait_us / 1e6),
        (LimitKind.CONCURRENCY, CONCURRENCY_RETRY_S if no_slot else 0.0),
    )
    kind, wait_s = max(waits, key=lambda wait: wait[1])
    return OverLimit(kind, wait_s) if wait_s > 0 else None


def bucket_full_in_us(wait_us: int, cost: int, passed: bool) -> int:
    """How long until a bucket is full that answered a cost with this wait, and was charged if it passed."""
    return wait_us + MINUTE_US - min(cost, MINUTE_US) + cost * passed if cost else 0


@dataclass(slots=True)
class Bucket:
    """A rate limit, by the time at which it is full again."""

    full_at_us: int = 0

    def wait_us(self, cost: int, now_us: int) -> int:
        """How long until the cost can be paid.

        A cost above the bucket's size needs a full bucket and leaves a debt, so it is not rejected for ever.
        """
        return max(self.full_at_us, now_us) + min(cost, MINUTE_US) - MINUTE_US - now_us

    def change(self, cost: int, now_us: int) -> None:
        """Pay a cost, or refund a negative one up to a full bucket."""
        self.full_at_us = max(self.full_at_us, now_us) + cost


@dataclass(slots=True)
class QuotaAccount:
    """What one key has used."""

    requests: Bucket
    tokens: Bucket
    open: int = 0

    def take(self, limits: Limits, tokens: int, now_us: int) -> OverLimit | None:
        """Count one request against all of its limits, or against none and say which is reached."""
        request_cost = cost_us(1, limits.requests_per_minute)
        token_cost = cost_us(tokens, limits.tokens_per_minute)
        rejection = over_limit(
            self.requests.wait_us(request_cost, now_us) if request_cost else 0,
            self.tokens.wait_us(token_cost, now_us) if token_cost else 0,
            limits.max_concurrent is not None and self.open >= limits.max_concurrent,
        )
        if rejection is None:
            self.requests.change(request_cost, now_us)
            self.tokens.change(token_cost, now_us)
            self.open += 1
        return rejection

    def settle(self, limits: Limits, charged: int, used: int | None, now_us: int) -> None:
        """Release the slot and correct the tokens; None leaves them as they were charged."""
        self.open -= 1
        if used is not None:
            per_minute = limits.tokens_per_minute
            self.tokens.change(cost_us(used, per_minute) - cost_us(charged, per_minute), now_us)

    def idle(self, now_us: int) -> bool:
        """Whether it has no open request and full buckets."""
        return not self.open and max(self.requests.full_at_us, self.tokens.full_at_us) <= now_us


@dataclass(frozen=True, slots=True)
class _OpenLease:
    account: QuotaAccount
    limits: Limits


class QuotaBook:
    """What each key has used. A key without an account has used nothing."""

    def __init__(self) -> None:
        self._accounts: dict[str, QuotaAccount] = {}
        self._open: dict[str, _OpenLease] = {}
        self._next_number = 0
        self._tidy_at = _FIRST_TIDYING

    def take(self, key_id: str, limits: Limits, tokens: int, now_s: float) -> Lease | OverLimit:
        """Count one request against all of its limits, or against none."""
        now_us = microseconds(now_s)
        account = self._account(key_id, now_us)
        if (rejection := account.take(limits, tokens, now_us)) is not None:
            return rejection
        lease = Lease(str(self._next_number), key_id, tokens, shared=False)
        self._next_number += 1
        self._open[lease.lease_id] = _OpenLease(account, limits)
        return lease

    def settle(self, lease: Lease, used_tokens: int | None, now_s: float) -> None:
        """Release the slot and correct the tokens; None leaves them as they were charged."""
        opened = self._open.pop(lease.lease_id)
        opened.account.settle(opened.limits, lease.tokens, used_tokens, microseconds(now_s))

    def go_on_from(self, key_id: str, requests_full_in_us: int, tokens_full_in_us: int, at_s: float) -> None:
        """Know that another counter left a key's buckets like this; slots are counted from none."""
        at_us = microseconds(at_s)
        account = self._account(key_id, at_us)
        for bucket, full_in_us in (
            (account.requests, requests_full_in_us),
            (account.tokens, tokens_full_in_us),
        ):
            bucket.full_at_us = max(bucket.full_at_us, at_us + full_in_us)

    def __len__(self) -> int:
        """Keys that have an account."""
        return len(self._accounts)

    def _account(self, key_id: str, now_us: int) -> QuotaAccount:
        account = self._accounts.get(key_id)
        if account is None:
            if len(self._accounts) >= self._tidy_at:
                self._tidy(now_us)
            account = self._accounts[key_id] = QuotaAccount(Bucket(), Bucket())
        return account

    def _tidy(self, now_us: int) -> None:
        """Forget idle accounts. The next tidying is at twice as many, so its cost per request is constant."""
        self._accounts = {
            key_id: account for key_id, account in self._accounts.items() if not account.idle(now_us)
        }
        self._tidy_at = max(_FIRST_TIDYING, 2 * len(self._accounts))

    def check_invariants(self) -> None:
        """Every account has as many slots in use as open leases."""
        open_slots = Counter(id(opened.account) for opened in self._open.values())
        for key_id, account in self._accounts.items():
            if account.open != open_slots.pop(id(account), 0):
                raise AssertionError(f"{key_id} has {account.open} slots in use, its leases say otherwise")
        if open_slots:
            raise AssertionError(f"{len(open_slots)} accounts with open leases were forgotten")


def microseconds(seconds: float) -> int:
    """The unit of buckets."""
    return round(seconds * 1e6)

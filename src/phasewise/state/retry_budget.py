"""A token bucket over all retries: each request earns a fraction of one, so retries never become the load."""

from __future__ import annotations


class RetryBudget:
    """At most `earned_per_request` retries per request in the long run, `burst` at once."""

    def __init__(self, earned_per_request: float = 0.2, burst: float = 2_500.0) -> None:
        self._earned_per_request = earned_per_request
        self._burst = burst
        self._tokens = burst

    def earn(self) -> None:
        """A request was admitted."""
        self._tokens = min(self._burst, self._tokens + self._earned_per_request)

    def take(self) -> bool:
        """Whether one more retry may happen; if so, it is paid for."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def check_invariants(self) -> None:
        """The bucket is neither overdrawn nor overfull."""
        if not 0.0 <= self._tokens <= self._burst:
            raise AssertionError(f"retry budget holds {self._tokens} of {self._burst}")

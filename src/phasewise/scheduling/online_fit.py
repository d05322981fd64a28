"""An online least-squares fit of two rates: one cheap update per reading, without numpy."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY_READINGS = 200.0
"""Older readings weigh less: this many back, a reading counts a third."""
_OUTLIER = 0.5
"""A reading that is off by more than this share weighs as if it were off by this much."""
_LEAST_READING = 1e-9
"""Readings below the resolution of the clock are ignored."""
_ALMOST_NOTHING = 1e-12


@dataclass(slots=True)
class TwoPartFit:
    """Learns `first_rate` and `second_rate`, neither below zero, of readings = first x rate + second x rate.

    Errors count relative to the reading, so that long readings do not drown the short ones.
    """

    weight: float = 0.0
    first_rate: float = 0.0
    second_rate: float = 0.0
    _first_first: float = 0.0
    _first_second: float = 0.0
    _second_second: float = 0.0
    _first_one: float = 0.0
    _second_one: float = 0.0

    def learn(self, first: float, second: float, reading: float) -> None:
        """Update the fit with a reading of so many units of each part."""
        if reading < _LEAST_READING or first + second <= 0:
            return
        weight = self._trust(first, second, reading)
        keep = 1.0 - 1.0 / _MEMORY_READINGS
        one, two = first / reading, second / reading
        self.weight = self.weight * keep + weight
        self._first_first = self._first_first * keep + weight * one * one
        self._first_second = self._first_second * keep + weight * one * two
        self._second_second = self._second_second * keep + weight * two * two
        self._first_one = self._first_one * keep + weight * one
        self._second_one = self._second_one * keep + weight * two
        self._solve()

    def expected(self, first: float, second: float) -> float:
        """The expected reading for so many units of each part."""
        return self.first_rate * first + self.second_rate * second

    def _trust(self, first: float, second: float, reading: float) -> float:
        expected = self.expected(first, second)
        if expected <= 0:
            return 1.0
        off = abs(reading - expected) / min(reading, expected)
        return 1.0 if off <= _OUTLIER else _OUTLIER / off

    def _solve(self) -> None:
        """Solve for both rates, or for one alone if the other would be negative.

        If all readings have the same ratio of parts, the parts cannot be separated: the first part takes it
        all.
        """
        apart = self._first_first * self._second_second - self._first_second**2
        if apart > 1e-6 * self._first_first * self._second_second:
            first = (self._first_one * self._second_second - self._second_one * self._first_second) / apart
            second = (self._second_one * self._first_first - self._first_one * self._first_second) / apart
            if first >= 0 and second >= 0:
                self.first_rate, self.second_rate = first, second
                return
        only_first = self._first_one / max(self._first_first, _ALMOST_NOTHING)
        only_second = self._second_one / max(self._second_second, _ALMOST_NOTHING)
        # The part that accounts for more of the readings' weight explains them better.
        if only_first * self._first_one >= only_second * self._second_one * (1 - 1e-6):
            self.first_rate, self.second_rate = only_first, 0.0
        else:
            self.first_rate, self.second_rate = 0.0, only_second

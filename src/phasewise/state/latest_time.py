"""The latest time that anybody told of, for those who act without being told one."""

from __future__ import annotations


class LatestTime:
    """A clock that only moves when somebody says what time it is."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def tell(self, at_s: float) -> None:
        """Something happened at this time."""
        self.now_s = max(self.now_s, at_s)

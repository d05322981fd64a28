"""Counts what came back, and what should not have."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .cases import CANARIES, OTHER, Case, RawCase

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "gateway.md"


def documented_errors(page: str) -> set[tuple[str, int]]:
    """The codes that the page promises, each with its status."""
    rows = re.findall(r"^\| `(\w+)` \| (\d{3}) \|", page, re.MULTILINE)
    return {(code, int(status)) for code, status in rows}


DOCUMENTED = documented_errors(REFERENCE.read_text(encoding="utf-8"))


@dataclass(slots=True)
class Tally:
    """What came back so far."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    not_as_expected: Counter[str] = field(default_factory=Counter)
    documented_5xx: Counter[str] = field(default_factory=Counter)
    valid: int = 0
    valid_answered_200: int = 0
    undocumented_5xx: int = 0
    hangs: int = 0
    cross_tenant_leaks: int = 0
    own_words_seen: int = 0
    admin_opened: int = 0

    def answered(self, case: Case, status: int, body: bytes) -> None:
        """A well-framed request has its answer."""
        self._count(case, status, body)
        self.valid += case.is_valid
        self.valid_answered_200 += case.is_valid and status == 200
        self.admin_opened += case.kind == "admin_by_client" and status == 200
        if case.tenant is not None:
            self.own_words_seen += CANARIES[case.tenant].encode() in body
            self.cross_tenant_leaks += CANARIES[OTHER[case.tenant]].encode() in body

    def answered_raw(self, case: RawCase, status: int, answers: int, body: bytes) -> None:
        """Bytes have their answer; after what had to be rejected there must not be another."""
        self._count(case, status, body)
        if case.accepted == (400,) and answers != 1:
            self.not_as_expected[f"{case.kind}: {answers} answers"] += 1

    def add(self, other: Tally) -> None:
        """Count another tally in."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, name, mine + theirs)

    def hung(self, case: Case | RawCase) -> None:
        """Nothing came in time."""
        self.sent[case.kind] += 1
        self.hangs += 1
        self.not_as_expected[f"{case.kind}: nothing"] += 1

    def _count(self, case: Case | RawCase, status: int, body: bytes) -> None:
        self.sent[case.kind] += 1
        self.statuses[status] += 1
        if case.accepted and status not in case.accepted:
            self.not_as_expected[f"{case.kind}: {status}"] += 1
        if status >= 500:
            code = code_of(body)
            if (code, status) in DOCUMENTED:
                self.documented_5xx[code] += 1
            else:
                self.undocumented_5xx += 1


def code_of(body: bytes) -> str:
    """The error's code, if it has one."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""

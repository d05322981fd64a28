"""What a check found, for programs. How people read it is the command's matter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from phasewise.check.facts import FleetFacts, TrialFacts
from phasewise.check.judgement import Finding


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The facts, what is wrong with them, and how long it took. `ran` is false where nothing runs yet."""

    ran: bool
    facts: FleetFacts
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing but warnings was found."""
        return all(it.is_warning for it in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        return {
            "ok": self.ok,
            "running": self.ran,
            "seconds": round(self.seconds, 3),
            "engines": [asdict(it) for it in self.facts.engines],
            "pairs": [_pair(it) for it in self.facts.trials],
            "findings": [{**asdict(it), "warning": it.is_warning} for it in self.findings],
        }


def _pair(trial: TrialFacts) -> dict[str, Any]:
    return {**asdict(trial), "proven": trial.proven, "bytes_per_s": trial.bytes_per_s}

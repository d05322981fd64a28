"""The verdict: slow to start, slow to stream, both or neither, with the cause that costs users most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.diagnosis.findings import AFFECTED_SHARE, Finding, Phase, find, starts_late, streams_slowly
from phasewise.diagnosis.fixes import Advice, advise
from phasewise.diagnosis.picture import Picture
from phasewise.model.slo import Slo
from phasewise.model.timeline import Outcome

MIN_REQUESTS = 3


class Ruling(StrEnum):
    """The answer to the question."""

    SLOW_TO_START = "slow_to_start"
    SLOW_TO_STREAM = "slow_to_stream"
    FAILING = "failing"
    HEALTHY = "healthy"
    TOO_LITTLE_SEEN = "too_little_seen"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ruling, what led to it, and what to do next."""

    ruling: Ruling
    slo: Slo
    picture: Picture
    findings: tuple[Finding, ...]
    also_slow: Phase | None = None

    @property
    def top(self) -> Finding | None:
        """The finding behind the ruling; None where no rule explains it."""
        return next((found for found in self.findings if found.phase.value == self.ruling.value), None)

    @property
    def advice(self) -> Advice | None:
        """What helps against the top finding, and what does not."""
        return advise(self.top.cause, self.picture.workload) if self.top is not None else None


def judge(picture: Picture, slo: Slo) -> Verdict:
    """Weigh the phases by the seconds users lost in them, then name the cause in the heavier one."""
    if picture.workload.requests < MIN_REQUESTS or (picture.start is None and picture.stream is None):
        return Verdict(Ruling.TOO_LITTLE_SEEN, slo, picture, ())
    start_lost_s = picture.start.lost_s if picture.start is not None and starts_late(picture) else 0.0
    stream_lost_s = picture.stream.lost_s if picture.stream is not None and streams_slowly(picture) else 0.0
    if start_lost_s == stream_lost_s == 0.0:
        return Verdict(Ruling.FAILING if _fails(picture) else Ruling.HEALTHY, slo, picture, ())
    heavier = Phase.START if start_lost_s >= stream_lost_s else Phase.STREAM
    findings = sorted(find(picture, slo), key=lambda finding: (finding.phase is not heavier, -finding.lost_s))
    lighter = Phase.STREAM if heavier is Phase.START else Phase.START
    both = min(start_lost_s, stream_lost_s) > 0
    return Verdict(Ruling(heavier.value), slo, picture, tuple(findings), lighter if both else None)


def _fails(picture: Picture) -> bool:
    """Whether so many requests went unserved that being fast for the others means little."""
    unserved = {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REJECTED}
    failed = sum(count for outcome, count in picture.outcomes if outcome in unserved)
    return failed >= AFFECTED_SHARE * picture.workload.requests

"""The verdict: slow to start, slow to stream, both or neither, with the cause that costs users most."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phasewise.diagnosis.advice import advise
from phasewise.diagnosis.cause import Phase
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.fix import Advice
from phasewise.diagnosis.picture import Picture
from phasewise.diagnosis.rules.find import explain
from phasewise.diagnosis.rules.objective import AFFECTED_SHARE, starts_late, streams_slowly
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
    """The ruling, what led to it, and what to do next.

    `findings` are those of the heavier phase first; caveats about the measurement come last, and are there
    whatever the ruling. `unexplained_share` is how much of the heavier phase's loss no rule accounts for.
    `foreseen` is the advice once somebody has predicted what its fixes bring.
    """

    ruling: Ruling
    slo: Slo
    picture: Picture
    findings: tuple[Finding, ...]
    also_slow: Phase | None = None
    unexplained_share: float | None = None
    foreseen: Advice | None = None

    @property
    def top(self) -> Finding | None:
        """The finding behind the ruling; None where no rule explains it."""
        return next((found for found in self.findings if found.phase.value == self.ruling.value), None)

    @property
    def caveats(self) -> tuple[Finding, ...]:
        """What speaks against trusting the measurement."""
        return tuple(found for found in self.findings if found.phase is Phase.MEASUREMENT)

    @property
    def advice(self) -> Advice | None:
        """What helps against the top finding, and what does not."""
        if self.foreseen is not None:
            return self.foreseen
        return advise(self.top, self.picture) if self.top is not None else None


def judge(picture: Picture, slo: Slo) -> Verdict:
    """Weigh the phases by the seconds users lost in them, then name the cause in the heavier one."""
    nothing_seen = picture.start is None and picture.stream is None and not _fails(picture)
    if picture.workload.requests < MIN_REQUESTS or nothing_seen:
        return Verdict(Ruling.TOO_LITTLE_SEEN, slo, picture, ())
    explained = explain(picture, slo)
    late, slow = starts_late(picture), streams_slowly(picture)
    if not late and not slow:
        ruling = Ruling.FAILING if _fails(picture) else Ruling.HEALTHY
        return Verdict(ruling, slo, picture, explained.findings)
    start_lost_s = picture.start.lost_s if picture.start is not None and late else 0.0
    stream_lost_s = picture.stream.lost_s if picture.stream is not None and slow else 0.0
    heavier, lighter = Phase.START, Phase.STREAM
    if not late or (slow and stream_lost_s > start_lost_s):
        heavier, lighter = lighter, heavier
    unserved = heavier is Phase.START and _fails(picture) and _mostly_silent(picture)
    return Verdict(
        ruling=Ruling.FAILING if unserved else Ruling(heavier.value),
        slo=slo,
        picture=picture,
        findings=_heavier_first(explained.findings, heavier),
        also_slow=lighter if late and slow else None,
        unexplained_share=explained.unexplained.get(heavier),
    )


def _heavier_first(findings: tuple[Finding, ...], heavier: Phase) -> tuple[Finding, ...]:
    rank = {heavier: 0, Phase.MEASUREMENT: 2}
    return tuple(sorted(findings, key=lambda finding: rank.get(finding.phase, 1)))


def _fails(picture: Picture) -> bool:
    """Whether so many requests went unserved that being fast for the others means little."""
    unserved = {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REJECTED}
    failed = sum(count for outcome, count in picture.outcomes if outcome in unserved)
    return failed >= AFFECTED_SHARE * picture.workload.requests


def _mostly_silent(picture: Picture) -> bool:
    """Whether what users lost before their first token was mostly lost by those that never got one."""
    start = picture.start
    return start is not None and 2 * (start.silent_lost_s + start.silent_gateway_s) > start.lost_s

"""What to do about each cause, with values that follow from the picture, and what would not help.

It never suggests what is set already. What a fix would bring is predicted elsewhere, each fix for itself.
"""

from __future__ import annotations

from dataclasses import replace

from phasewise.diagnosis import advice_around, advice_start, advice_stream
from phasewise.diagnosis.advice_levers import Levers
from phasewise.diagnosis.advice_start import Remedy
from phasewise.diagnosis.cause import Cause, Phase
from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.fix import Advice, Figure, Fix
from phasewise.diagnosis.picture import Picture

REMEDIES: dict[Cause, Remedy] = advice_start.REMEDIES | advice_stream.REMEDIES | advice_around.REMEDIES
USELESS: dict[Cause, tuple[str, ...]] = advice_start.USELESS | advice_stream.USELESS | advice_around.USELESS

VERIFY_FIRST = "phasewise diagnose FLEET.yaml --verify --trace window.jsonl (from --save-traffic)"
"""A fix is verified under the load that was seen, which `--save-traffic window.jsonl` keeps."""
VERIFY_OTHER = "phasewise compare FLEET.yaml CHANGED.yaml"


def advise(finding: Finding, picture: Picture) -> Advice:
    """The advice for a finding, without what is done already."""
    fixes = [fix for fix in REMEDIES[finding.cause](Levers(picture)) if fix is not None]
    useless = USELESS[finding.cause] + advice_start.also_useless(finding.cause, picture)
    return Advice(_with_commands([_aimed(fix, finding) for fix in fixes]), useless)


def _aimed(fix: Fix, finding: Finding) -> Fix:
    """Some causes slow either phase down: what a fix is judged by is the phase in which time was lost."""
    if finding.phase is Phase.STREAM and fix.aims_at in {Figure.TTFT_P50, Figure.TTFT_P90}:
        return replace(fix, aims_at=Figure.TPOT_P50)
    if finding.phase is Phase.START and fix.aims_at in {Figure.TPOT_P50, Figure.ITL_P99}:
        return replace(fix, aims_at=Figure.TTFT_P50)
    return fix


def _with_commands(fixes: list[Fix]) -> tuple[Fix, ...]:
    """Every change of a fleet file can be tried: the first one by a single command."""
    first = next((fix for fix in fixes if fix.lever is not None), None)
    return tuple(
        fix if fix.lever is None else replace(fix, verify=VERIFY_FIRST if fix is first else VERIFY_OTHER)
        for fix in fixes
    )

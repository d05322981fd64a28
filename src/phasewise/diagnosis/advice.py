"""What to do about each cause, with values that follow from the picture, and what would not help.

It never suggests what is set already. What a fix would bring is predicted elsewhere.
"""

from __future__ import annotations

from phasewise.diagnosis.finding import Finding
from phasewise.diagnosis.fix import Advice
from phasewise.diagnosis.picture import Picture


def advise(finding: Finding, picture: Picture) -> Advice:
    """The advice for a finding, without what is done already."""
    return Advice(fixes=())

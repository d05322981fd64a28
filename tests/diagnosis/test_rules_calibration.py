"""A kind of verdict is as sure as it was right."""

import pytest

from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.finding import Cause, Confidence, Phase, least
from phasewise.diagnosis.rules.calibration import at_most


@pytest.mark.parametrize(
    ("seen_by", "sure"),
    [
        (SeenBy.GATEWAY, Confidence.HIGH),
        (SeenBy.STEP_RECORD, Confidence.MEDIUM),
        (SeenBy.COUNTERS, Confidence.LOW),
    ],
)
def test_overload_of_streams_is_surer_the_more_is_seen(seen_by, sure):
    assert at_most(Phase.STREAM, Cause.OVERLOAD, seen_by) is sure


def test_what_is_seen_directly_may_be_sure():
    assert at_most(Phase.STREAM, Cause.ENGINE_PAUSES, SeenBy.COUNTERS) is Confidence.HIGH


def test_the_least_of_several_confidences_counts():
    assert least(Confidence.HIGH, Confidence.LOW, Confidence.MEDIUM) is Confidence.LOW

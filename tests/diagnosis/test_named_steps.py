"""A finding that names steps names their engine where there are several: each numbers its own."""

from phasewise.core.steps import TimedStep
from phasewise.diagnosis.analysis.token_ledger import TokenLedger
from phasewise.diagnosis.finding import Cause, FactSource
from tests.builders import EPOCH_S, make_step
from tests.diagnosis.summaries import make_engine, make_stall, make_stream, make_summary, the_finding


def named(engines, stalled):
    """What is said of step 7, in which one stream of each of these engines stood still."""
    step = TimedStep(make_step(7, 3.0, prompt=2000), EPOCH_S)
    stalls = [make_stall(steps=(step,), engine=name) for name in stalled]
    stream = make_stream(TokenLedger(0.05), stalls)
    summary = make_summary(stream=stream, engines=[make_engine(name) for name in engines])
    facts = the_finding(summary, Cause.CHUNKS_STALL).facts
    return [it.words for it in facts if it.source is FactSource.STEP_RECORD and "stalled" in it.words]


def test_the_same_number_in_two_engines_is_two_steps():
    first, second = named(["w0", "w1"], ["w0", "w1"])
    assert first.startswith("1 stream stalled")
    assert first.endswith(" of w0")
    assert second.endswith(" of w1")


def test_a_single_engine_goes_without_saying():
    (words,) = named(["w0"], ["w0", "w0"])
    assert words.startswith("2 streams stalled")
    assert " of w0" not in words

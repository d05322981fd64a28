"""Every fix of a verdict says what it would bring, or why that is unknown."""

from dataclasses import replace

import pytest

from phasewise.core.slo import DEFAULT_SLO, Slo
from phasewise.core.steps import logs_by_rank
from phasewise.diagnosis import diagnose as diagnosing
from phasewise.diagnosis.advice.fix import Advice, LeverChange
from phasewise.diagnosis.analysis.attribution import readings_of
from phasewise.diagnosis.diagnose import CALIBRATE, NO_COSTS, Known, diagnose
from tests.benchmark.compare.builders import make_evidence, make_fix, make_verdict
from tests.builders import EPOCH_S, make_step, make_timeline
from tests.diagnosis.predict.traffic_builders import make_fit

FIXES = (
    make_fix(LeverChange("max_num_seqs", 8)),
    make_fix(LeverChange("kv_dtype", "fp8")),
    make_fix(),
)
EVIDENCE = make_evidence([make_timeline(started_unix_s=EPOCH_S + index) for index in range(6)])


@pytest.fixture
def judged(monkeypatch):
    """A verdict with these fixes, whatever was seen."""
    monkeypatch.setattr(diagnosing, "judge", lambda *seen: make_verdict(*FIXES))
    monkeypatch.setattr(diagnosing, "advise", lambda *seen: Advice(FIXES))


@pytest.mark.usefixtures("judged")
def test_costs_are_asked_for_only_where_they_would_help():
    cap, fp8, other = diagnose(EVIDENCE, DEFAULT_SLO, Known()).advice.fixes
    assert cap.unpredictable == NO_COSTS + CALIBRATE
    assert "kv_dtype" in fp8.unpredictable
    assert "a replay does not model" in other.unpredictable


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize("fit", [None, make_fit()], ids=["without costs", "with costs"])
def test_where_no_single_request_was_seen_there_is_a_verdict_and_no_prediction(fit):
    """A stock engine that is only watched is judged by its counters alone."""
    fixes = diagnose(make_evidence([]), DEFAULT_SLO, Known(fit)).advice.fixes
    assert all(fix.unpredictable and fix.effect is None for fix in fixes)


@pytest.mark.usefixtures("judged")
def test_a_prediction_leaves_out_what_a_measurement_does_and_knows_the_windows_costs(monkeypatch):
    calibrated, own, handed = make_fit(), make_fit(), {}

    def predict(advice, traffic, fit, setup, rng, *, others, slo):
        handed.update(warm_up=traffic.warm_up, clients=traffic.concurrency, fits=(fit, *others))
        return advice

    monkeypatch.setattr(diagnosing, "fit_window", lambda *seen: own)
    monkeypatch.setattr(diagnosing, "predict_advice", predict)
    diagnose(EVIDENCE, DEFAULT_SLO, Known(calibrated, concurrency=2, warm_up=2))
    assert handed["warm_up"] == handed["clients"] == 2
    assert handed["fits"][0] is calibrated
    assert handed["fits"][1] is own


def test_every_step_record_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(diagnosing, "readings_of", lambda *seen: read.append(seen) or readings_of(*seen))
    evidence = replace(EVIDENCE, logs={"w0": logs_by_rank([make_step(seq, 0.1 * seq) for seq in range(20)])})
    diagnose(evidence, Slo(ttft_s=1e-6, tpot_s=1e-6), Known())
    assert len(read) == 1

"""Every fix of a verdict says what it would bring, or what keeps that from being told."""

from dataclasses import replace

import pytest

from phasewise.cli import reaching_verdicts
from phasewise.cli.reaching_verdicts import NO_COSTS, Known, reach_verdict
from phasewise.diagnosis.fix import LeverChange
from phasewise.model.slo import DEFAULT_SLO
from tests.builders import EPOCH_S, make_timeline
from tests.predict.traffic_builders import make_fit
from tests.verify.builders import make_evidence, make_fix, make_verdict

FIXES = (
    make_fix(LeverChange("max_running", 8)),
    make_fix(LeverChange("kv_dtype", "fp8")),
    make_fix(),
)
EVIDENCE = make_evidence([make_timeline(started_unix_s=EPOCH_S + index) for index in range(6)])


@pytest.fixture
def judged(monkeypatch):
    """Verdicts with these fixes, whatever was seen, and the costs that are known beforehand."""

    def judge_with(fit):
        verdict = make_verdict(*FIXES)
        picture = replace(verdict.picture, fit=fit)
        monkeypatch.setattr(reaching_verdicts, "picture_of", lambda *seen: picture)
        monkeypatch.setattr(reaching_verdicts, "judge", lambda *seen: replace(verdict, picture=picture))

    return judge_with


def test_costs_are_asked_for_only_where_they_would_help(judged):
    judged(None)
    cap, fp8, other = reach_verdict(EVIDENCE, DEFAULT_SLO, Known()).advice.fixes
    assert cap.unpredictable == NO_COSTS
    assert "kv_dtype" in fp8.unpredictable
    assert "a replay does not hold" in other.unpredictable


@pytest.mark.parametrize("fit", [None, make_fit()], ids=["without costs", "with costs"])
def test_where_no_single_request_was_seen_there_is_a_verdict_and_no_prediction(judged, fit):
    """A stock engine that is only watched tells by its counters alone."""
    judged(fit)
    fixes = reach_verdict(make_evidence([]), DEFAULT_SLO, Known()).advice.fixes
    assert all(fix.unpredictable and fix.effect is None for fix in fixes)


def test_a_prediction_leaves_out_what_a_measurement_does_and_knows_the_windows_costs(judged, monkeypatch):
    calibrated, own, handed = make_fit(), make_fit(), {}

    def predict(advice, traffic, fit, setup, rng, *, others):
        handed.update(warm_up=traffic.warm_up, clients=traffic.concurrency, fits=(fit, *others))
        return advice

    judged(calibrated)
    monkeypatch.setattr(reaching_verdicts, "fit_window", lambda *seen: own)
    monkeypatch.setattr(reaching_verdicts, "predict_advice", predict)
    reach_verdict(EVIDENCE, DEFAULT_SLO, Known(calibrated, concurrency=2, warm_up=2))
    assert handed["warm_up"] == handed["clients"] == 2
    assert handed["fits"][0] is calibrated
    assert handed["fits"][1] is own

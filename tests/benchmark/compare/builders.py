"""Plain builders for what is predicted and what comes of it."""

from __future__ import annotations

from phasewise.benchmark.compare.ledger import MeasuredOutcome, Prediction, PredictionCheck
from phasewise.core.slo import DEFAULT_SLO
from phasewise.core.statistics import Interval
from phasewise.diagnosis.advice.fix import Advice, Effect, Figure, Fix, PredictedChange
from phasewise.diagnosis.analysis.engine_load import SeenBy
from phasewise.diagnosis.analysis.window_summary import WindowSummary, WorkloadShape
from phasewise.diagnosis.evidence import Evidence
from phasewise.diagnosis.finding import Cause, Confidence, Finding, Phase
from phasewise.diagnosis.verdict import Ruling, Verdict
from tests.builders import EPOCH_S


def make_prediction(prediction_id="p-ttft_p50", **fields):
    return Prediction(
        **{
            "id": prediction_id,
            "run": prediction_id.partition("-")[0],
            "at_unix_s": EPOCH_S,
            "machine": "Linux x86_64, 2 cores",
            "model": "m",
            "engine_version": "vllm 0.0",
            "phasewise_version": "0.0",
            "cause": "batch_cap_too_low",
            "fix": "let more run at once",
            "lever": "max_num_seqs",
            "value": "8",
            "metric": "ttft_p50",
            "aim": True,
            "ratio": Interval(0.3, 0.7, 0.9),
            "expected": 0.5,
            **fields,
        }
    )


def make_outcome(prediction_id="p-ttft_p50", held=PredictionCheck.HELD, **fields):
    return MeasuredOutcome(
        **{
            "id": prediction_id,
            "at_unix_s": EPOCH_S + 600.0,
            "held": held,
            "ratio": 0.5,
            "interval": Interval(0.4, 0.6, 0.95),
            "pairs": 4,
            **fields,
        }
    )


def make_verdict(*fixes, cause=Cause.BATCH_CAP_LOW):
    """A verdict of a slow start with these fixes for its cause; a healthy one without a cause."""
    shape = WorkloadShape(8, 1.0, 64.0, 64.0, 8.0, 8.0, None, None)
    summary = WindowSummary(1.0, SeenBy.GENERATOR, None, None, shape, (("succeeded", 8),))
    if cause is None:
        return Verdict(Ruling.HEALTHY, DEFAULT_SLO, summary, ())
    found = Finding(Phase.START, cause, 0.8, 4.0, (), Confidence.HIGH, "nothing changes")
    return Verdict(Ruling.SLOW_TO_START, DEFAULT_SLO, summary, (found,), advice=Advice(fixes))


def make_effect(low, high, *, figure=Figure.TTFT_P50, **others):
    """What a fix is predicted to do: the range of a figure's ratio, and of others by their names."""
    ranges = {figure: (low, high)} | {Figure(name): bounds for name, bounds in others.items()}
    return Effect(
        tuple(
            PredictedChange(each, 1.0, sum(bounds) / 2, Interval(*bounds, 0.9))
            for each, bounds in ranges.items()
        ),
        requests=8,
        draws=24,
        replay_off_by=0.1,
    )


def make_fix(lever=None, effect=None, **fields):
    return Fix(
        "let more run at once", "slower streams", Figure.TTFT_P50, lever=lever, effect=effect, **fields
    )


def make_evidence(timelines=()):
    return Evidence(EPOCH_S, 1.0, SeenBy.GENERATOR, tuple(timelines), {}, (), ())

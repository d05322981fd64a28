"""Plain builders for what is predicted and what comes of it."""

from __future__ import annotations

from phasewise.model.interval import Interval
from phasewise.verify.ledger import Held, Outcome, Prediction
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
            "lever": "max_running",
            "value": "8",
            "metric": "ttft_p50",
            "aim": True,
            "ratio": Interval(0.3, 0.7, 0.9),
            "expected": 0.5,
            **fields,
        }
    )


def make_outcome(prediction_id="p-ttft_p50", held=Held.HELD, **fields):
    return Outcome(
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

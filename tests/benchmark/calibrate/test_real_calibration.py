"""The same real engine calibrated with its step record and, as a stock one, by a client's clock alone."""

from __future__ import annotations

import pytest

from phasewise.benchmark.calibrate.calibrate import CalibrateSpec, calibrate
from phasewise.benchmark.calibrate.result import Seen
from phasewise.costs.fit import step_fit
from phasewise.costs.fit.step import StepKind, decoding, prefilling
from tests.real_engine import free_port

pytestmark = pytest.mark.real

BUDGET_S = 40.0


@pytest.fixture
def few_draws(monkeypatch):
    """How far coefficients would move is tried elsewhere, and takes most of a fit's time."""
    monkeypatch.setattr(step_fit, "DRAWS", 5)


async def test_a_real_engine_is_calibrated_with_its_recorder_and_without(real_engine, few_draws):
    nowhere = f"http://127.0.0.1:{free_port()}"
    by_steps, by_client = [
        await calibrate(real_engine.base_url, CalibrateSpec(budget_s=BUDGET_S, steps_url=url, seed=1))
        for url in (real_engine.steps_url, nowhere)
    ]
    assert (by_steps.seen, by_client.seen) == (Seen.STEPS, Seen.CLIENT)
    for found in (by_steps, by_client):
        assert found.fit.cost.floor_s > 0
        # None on a machine that is too slow for enough steps of a kind within the budget.
        error = found.fit.held_out_error(StepKind.DECODE)
        assert error is None or 0 < error < 1
        # The longest prompt depends on the machine's speed: nothing is predicted two magnitudes beyond it.
        magnitude = max(prompts for prompts, _, _ in found.fit.seen)
        assert found.fit.predict(prefilling(2 ** (magnitude + 1))) is None
    # One after the other on a shared machine, which may have had three times the work at one of them.
    alone = decoding([40])
    assert 0.2 < by_client.fit.cost(alone) / by_steps.fit.cost(alone) < 5
    assert 0.2 < by_client.fit.cost.floor_s / by_steps.fit.cost.floor_s < 5
    assert by_steps.fit.cost(prefilling(200)) > 1.2 * by_steps.fit.cost(prefilling(16))

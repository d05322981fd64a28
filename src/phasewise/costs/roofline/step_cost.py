"""A deployment's step times in the form in which they are also fitted: modelled, not measured."""

from __future__ import annotations

from phasewise.costs.fit.step import StepCost
from phasewise.costs.roofline.deployment import Deployment
from phasewise.costs.roofline.step_demand import PrefillChunk, decodes

_FAR = 4096
_BATCH = 64
"""Of mixtures of experts: a step of so many tokens reads nearly all of them."""


def modelled_step_cost(deployment: Deployment) -> StepCost:
    """Slopes of the roofline: weights are read in every step, until arithmetic takes longer than that.

    Experts that a small batch does not touch are counted as read.
    """
    one, many = deployment.step(PrefillChunk(1)), deployment.step(PrefillChunk(_FAR))
    weights_s = deployment.step(decodes(_BATCH, 0)).weight_read_s
    per_token_s = (many.compute_s - one.compute_s) / (_FAR - 1)
    network_s = (many.network_s - one.network_s) / (_FAR - 1)
    # One token that sees many: its pairs are as many as the tokens it sees.
    attention_s = (
        deployment.step(PrefillChunk(_FAR, _FAR)).attention_compute_s
        - deployment.step(PrefillChunk(_FAR)).attention_compute_s
    ) / (_FAR * _FAR)
    kv_s = (deployment.step(decodes(1, 2 * _FAR)).kv_s - deployment.step(decodes(1, _FAR)).kv_s) / _FAR
    return StepCost(
        floor_s=weights_s + one.overhead_s + one.network_s,
        knee_tokens=max(1, round(weights_s / per_token_s)),
        beyond_knee_s_per_token=per_token_s,
        attention_s_per_token_pair=attention_s,
        kv_read_s_per_token=kv_s,
        per_request_s=0.0,
        per_token_s=network_s,
    )

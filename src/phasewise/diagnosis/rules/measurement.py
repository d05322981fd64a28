"""Caveats: signs that the measurement itself cannot be trusted. They weigh nothing, and are always said."""

from __future__ import annotations

from collections.abc import Iterator

from phasewise.diagnosis.cause import Cause, Confidence, Phase
from phasewise.diagnosis.finding import Fact, FactSource, Finding
from phasewise.diagnosis.picture import Trust
from phasewise.diagnosis.rules.words import ms, percent
from phasewise.model.slo import Slo

WARM_SHARE = 0.2
"""Prompts that are warmer than this by accident make a start look better than it is."""
DRIFT_RATIO = 1.5
"""What changed by less within the window is still one figure."""
LAG_OF_OBJECTIVE = 0.1
"""A generator that is late by more of the objective than this shifts every figure noticeably."""


def caveats(trust: Trust, slo: Slo) -> Iterator[Finding]:
    """Every reason to distrust the figures."""
    if trust.lag_p90_s is not None and trust.lag_p90_s >= LAG_OF_OBJECTIVE * slo.ttft_s:
        yield _caveat(
            Cause.GENERATOR_LAG,
            min(1.0, trust.lag_p90_s / slo.ttft_s),
            Fact(
                f"the load generator sent up to {ms(trust.lag_p90_s)} late (p90), "
                f"{ms(trust.lag_mean_s)} on average: that time is not your server's",
                FactSource.CLIENT,
            ),
            "the same load from a machine of its own shows the same figures",
        )
    if trust.warm_share is not None and trust.warm_share >= WARM_SHARE:
        yield _caveat(
            Cause.WARM_CACHE,
            trust.warm_share,
            Fact(
                f"{percent(trust.warm_share)} of the prompt tokens came from the prefix cache though nobody "
                "had sent them in this window: an earlier run left them there",
                FactSource.ENGINE_REPORT,
            ),
            "the same requests start as soon after the engine's cache was emptied",
        )
    drifts = {"TTFT": trust.ttft_drift, "time per output token": trust.tpot_drift}
    for name, ratio in drifts.items():
        if ratio is not None and ratio > 0 and max(ratio, 1 / ratio) >= DRIFT_RATIO:
            yield _caveat(
                Cause.DRIFT,
                abs(1 - min(ratio, 1 / ratio)),
                Fact(
                    f"{name} of the window's last third is {ratio:.1f}x that of its first: "
                    "the figures depend on how long one watched",
                    FactSource.DERIVED,
                ),
                "a longer window shows the same figures from beginning to end",
            )


def _caveat(cause: Cause, share: float, fact: Fact, refuted_by: str) -> Finding:
    return Finding(Phase.MEASUREMENT, cause, share, 0.0, (fact,), Confidence.MEDIUM, refuted_by)

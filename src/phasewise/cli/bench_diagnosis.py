"""`phasewise bench --diagnose`: why the run was as it was, from what its own client and its engines saw."""

from __future__ import annotations

from dataclasses import dataclass

from phasewise.cli.bench_modes import Job, Results, run_loads
from phasewise.cli.diagnose_target import subject_of
from phasewise.cli.reaching_verdicts import Known, concurrency_of, reach_verdict
from phasewise.costs.step_fit import StepFit
from phasewise.diagnosis.verdict import Verdict
from phasewise.observe.target import identify
from phasewise.verify.own_run import observed


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on a run, and on what it was made."""

    verdict: Verdict
    subject: str


async def run_diagnosed(
    job: Job, admin_key: str | None, fit: StepFit | None
) -> tuple[Results, Diagnosis | None]:
    """Measure once while the target and the engines behind it are watched, and judge what was seen."""
    target = await identify(job.url, admin_key, job.spec.steps_url)
    async with observed(target, admin_key) as watch:
        results = await run_loads(job, (job.spec.plan.load,))
        if not results.measured:
            return results, None
        evidence = await watch.evidence(results.measured[0].run)
    known = Known(fit, concurrency=concurrency_of(job.spec))
    return results, Diagnosis(reach_verdict(evidence, job.slo, known), subject_of(target))

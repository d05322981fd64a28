"""A diagnosis: gathers evidence of a server or reads it from a file, and judges it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from phasewise.api.call import admin_key_or_default, api_key_or_default, check_range, run, seed_or_random
from phasewise.api.targets import address_of, is_evidence_file, subject_of
from phasewise.core.errors import ConfigError, UsageError
from phasewise.core.slo import Slo, parse_slo
from phasewise.diagnosis.advice.fix import Advice
from phasewise.diagnosis.diagnose import Known
from phasewise.diagnosis.diagnose import diagnose as verdict_on
from phasewise.diagnosis.evidence import Evidence, evidence_of
from phasewise.diagnosis.finding import Cause, Confidence, Finding
from phasewise.diagnosis.gather.costs_file import load_fit
from phasewise.diagnosis.gather.target import identify
from phasewise.diagnosis.gather.watch import GatherOrder, GatherProgress, gather
from phasewise.diagnosis.observed.bundle import read_bundle
from phasewise.diagnosis.observed.observation import Observed
from phasewise.diagnosis.verdict import Ruling, Verdict, verdict_record
from phasewise.fleet.config import phasewise_home
from phasewise.report.diagnosis.words import NOT_THE_SERVER, headline

EXIT_CODES = {
    Ruling.HEALTHY: 0,
    Ruling.SLOW_TO_START: 3,
    Ruling.SLOW_TO_STREAM: 3,
    Ruling.FAILING: 3,
    Ruling.NOT_ENOUGH_TRAFFIC: 4,
    Ruling.MACHINE_BUSY: 5,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether a server is slow to start or slow to stream, why, and what to do.

    `sentence` is the verdict in words. `cause` and `confidence` belong to the finding behind it: None if no
    rule explains it. `findings` are ranked. `exit_code` is the command's. `details` and `evidence` hold
    everything else that was observed; their fields may change between versions.
    """

    target: str
    verdict: Ruling
    sentence: str
    cause: Cause | None
    confidence: Confidence | None
    findings: tuple[Finding, ...]
    advice: Advice | None
    exit_code: int
    details: Verdict = field(repr=False)
    evidence: Evidence = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as `to_json`, as plain JSON types."""
        return verdict_record(self.details) | {"exit_code": self.exit_code}

    def to_json(self) -> str:
        """What `phasewise diagnose --json` prints."""
        return orjson.dumps(self.to_dict()).decode()


def diagnose(
    target: str,
    *,
    probe: bool = False,
    window: float | None = None,
    slo: str = "",
    model: str | None = None,
    steps_url: str | None = None,
    costs: str | Path | None = None,
    api_key: str | None = None,
    admin_key: str | None = None,
    seed: int | None = None,
) -> Diagnosis:
    """Find out whether a server is slow to start or slow to stream, why, and what to do about it.

    Works like `phasewise diagnose TARGET`, with the same options. Raises PhasewiseError.
    """
    check_range("--window", window, 1, 3600)
    known = Known(None if costs is None else load_fit(Path(costs)))
    order = gather_order(window, model, api_key_or_default(api_key), seed, probing=probe)
    observed, objective = observe(target, slo, order, admin_key, steps_url, _Quiet())
    return judge(observed, objective, known, numbered=is_evidence_file(target))


def gather_order(
    window_s: float | None, model: str | None, api_key: str | None, seed: int | None, *, probing: bool
) -> GatherOrder:
    """What to gather; UsageError for options that would be ignored."""
    of_a_probe = {"--model": model, "--seed": seed}
    ignored = ["--window"] if probing and window_s is not None else []
    if not probing:
        ignored = [option for option, value in of_a_probe.items() if value is not None]
    if ignored:
        which = "with" if probing else "without"
        raise UsageError(f"{', '.join(ignored)} does nothing {which} --probe", hint="leave one of them out")
    return GatherOrder(window_s, probing, model, api_key, seed_or_random(seed))


def judge(observed: Observed, objective: Slo, known: Known, *, numbered: bool) -> Diagnosis:
    """The diagnosis of what was observed. The ids of an evidence file are numbers: `numbered`."""
    evidence = replace(evidence_of(observed), numbered=numbered)
    return diagnosis_of(evidence, objective, known, subject_of(observed))


def observe(
    target: str,
    slo: str,
    order: GatherOrder,
    admin_key: str | None,
    steps_url: str | None,
    progress: GatherProgress,
) -> tuple[Observed, Slo]:
    """What is seen of a target, or was kept in a file, and the objectives to judge it by."""
    if is_evidence_file(target):
        asked = {"--probe": order.probing, "--window": order.window_s, "--steps-url": steps_url}
        for option, value in asked.items():
            if value:
                raise not_for_a_file(option)
        observed, objective = read_bundle(Path(target).read_bytes())
        return observed, parse_slo(slo, objective)
    objective = parse_slo(slo)
    url = address_of(target, phasewise_home(os.environ))
    key = admin_key_or_default(admin_key, url)

    async def gathered() -> Observed:
        return await gather(await identify(url, key, steps_url), key, order, progress)

    return run(gathered()), objective


def not_for_a_file(option: str) -> ConfigError:
    """The error for an option that needs a server where a file was given."""
    return UsageError(
        f"{option} needs a server, and this is a file",
        hint="give the server's address, or leave the option out",
    )


def diagnosis_of(evidence: Evidence, objective: Slo, known: Known, target: str) -> Diagnosis:
    """The diagnosis that evidence leads to; `target` is its subject in words."""
    judged = verdict_on(evidence, objective, known)
    top = judged.top
    return Diagnosis(
        target=target,
        verdict=judged.ruling,
        sentence=headline(judged),
        cause=None if top is None else top.cause,
        confidence=None if top is None else top.confidence,
        findings=judged.findings,
        advice=judged.advice,
        exit_code=exit_code(judged),
        details=judged,
        evidence=evidence,
    )


def exit_code(verdict: Verdict) -> int:
    """The exit code of a verdict. Time lost in our own load generator is no judgement of the server."""
    if verdict.top is not None and verdict.top.cause in NOT_THE_SERVER:
        return EXIT_CODES[Ruling.MACHINE_BUSY]
    return EXIT_CODES[verdict.ruling]


class _Quiet:
    """Shows no progress."""

    def say(self, words: str) -> None:
        pass

    @asynccontextmanager
    async def watching(self, window_s: float) -> AsyncIterator[None]:
        yield

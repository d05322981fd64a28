"""The top fix is predicted, written down, tried on a copy and judged; runs are made up."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from phasewise.benchmark.compare.compare import ComparePlan
from phasewise.benchmark.compare.ledger import LedgerFile, PredictionCheck
from phasewise.benchmark.compare.verdict import Rules
from phasewise.benchmark.run import BenchRun
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import PlanSpec
from phasewise.benchmark.workload.presets import Lengths, Shape
from phasewise.core.errors import ConfigError, FleetError
from phasewise.core.slo import DEFAULT_SLO
from phasewise.diagnosis.advice.fix import LeverChange
from phasewise.diagnosis.finding import Cause
from phasewise.experiments.fix_trial import (
    Diagnosed,
    FixTrialPlan,
    FixTrialTools,
    Setting,
    try_top_fix,
)
from phasewise.fleet.config import load_fleet
from tests.benchmark.compare.builders import make_effect, make_evidence, make_fix, make_verdict
from tests.builders import make_timeline

FLEET = "name: small\npools:\n  - levers: {max_num_seqs: 1}  # as somebody wrote it\n"
MORE = LeverChange("max_num_seqs", 8)


@dataclass(frozen=True)
class MadeUpArm:
    """Stands for a fleet; its address says how many requests it runs at once."""

    path: Path
    name: str
    starts: bool

    @asynccontextmanager
    async def serving(self):
        if not self.starts:
            raise FleetError("`phasewise up` failed: no memory", hint=f"try it alone: up {self.path}")
        yield f"http://fleet/{load_fleet(self.path).pools[0].levers.max_num_seqs}"


def made_up_run(url, spec):
    """With half as many slots a first token takes twice as long; seeds differ by a little."""
    places = int(url.rpartition("/")[2])
    noise = 1 + (spec.seed % 7 + places) / 100
    timelines = tuple(
        make_timeline((first_s, first_s + 0.05, first_s + 0.1), request_id=f"r{number}")
        for number in range(spec.plan.requests)
        if (first_s := noise * (1 + number / 10) / places)
    )
    return BenchRun(target=None, plan=None, timelines=timelines, wall_s=1.0)


@dataclass
class Bench:
    """The tools of a verification, and what was seen of it."""

    tmp_path: Path
    verdict: object
    cut_at: int | None = None
    open_at_first_block: int | None = None
    blocks: int = 0
    copy_starts: bool = True
    ledger_lost_at: int | None = None
    most_replicas: int = 1
    announced: list = field(default_factory=list)
    arms: list = field(default_factory=list)

    @property
    def ledger(self):
        return LedgerFile(self.tmp_path / "ledger.jsonl")

    @property
    def file(self):
        return self.tmp_path / "fleet.yaml"

    async def measure(self, url, spec, label):
        if self.open_at_first_block is None:
            self.open_at_first_block = sum(not entry.outcome for entry in self.ledger.read().entries)
        if self.blocks == self.cut_at:
            raise asyncio.CancelledError
        self.blocks += 1
        if self.blocks == self.ledger_lost_at:
            self.ledger.path.unlink()
            self.ledger.path.mkdir()
        return made_up_run(url, spec)

    async def diagnose(self, url):
        assert self.ledger.read().entries == ()
        return Diagnosed(self.verdict, make_evidence())

    def arm(self, path, name):
        self.arms.append((path, load_fleet(path)))
        return MadeUpArm(path, name, self.copy_starts or path == self.file)

    def reject(self, fleet):
        if fleet.pools[0].replicas > self.most_replicas:
            raise ConfigError("pool main needs cores that are not there", hint="lower pools.main.replicas")

    def tools(self):
        return FixTrialTools(
            arm=self.arm,
            diagnose=self.diagnose,
            measure=self.measure,
            ledger=self.ledger,
            clock=lambda: 1.0,
            show=lambda diagnosed: None,
            announce=lambda fix, change, predictions: self.announced.append(change.lines),
            say=lambda words: None,
            forgives=lambda: True,
            reject=self.reject,
        )

    async def verify(self):
        self.file.write_text(FLEET)
        shape = Shape("small", Lengths.fixed(40), Lengths.fixed(12))
        spec = RunSpec(PlanSpec(shape, ClosedLoop(4), requests=6), seed=5)
        setting = Setting("a machine", "m", "vllm 0.0", "0.0")
        compare = ComparePlan(spec, Rules(DEFAULT_SLO, 0), control_pairs=0, pairs=4)
        return await try_top_fix(
            FixTrialPlan(self.file, load_fleet(self.file), setting, compare), self.tools()
        )


@pytest.mark.parametrize(
    ("effect", "held"),
    [
        (make_effect(0.01, 0.95), PredictionCheck.HELD),
        (make_effect(2.0, 3.0), PredictionCheck.WRONG_SIGN),
        (None, PredictionCheck.UNPREDICTED),
    ],
)
async def test_a_fix_is_tried_on_a_copy_and_its_prediction_is_in_the_ledger_before(tmp_path, effect, held):
    bench = Bench(tmp_path, make_verdict(make_fix(), make_fix(MORE, effect, unpredictable="no fit")))
    done = await bench.verify()
    assert bench.open_at_first_block == 1
    assert bench.file.read_text() == FLEET
    assert done.change == ("pools.main.levers.max_num_seqs: 1 -> 8",)
    assert bench.announced == [done.change]
    changed, fleet = bench.arms[-1]
    assert fleet.pools[0].levers.max_num_seqs == 8
    assert not changed.exists()
    (entry,) = bench.ledger.read().entries
    assert entry.outcome.held is held
    assert entry.outcome.ratio < 0.95, "with eight places nobody waits for one"
    assert (entry.prediction.lever, entry.prediction.value) == ("max_num_seqs", "8")
    assert done.entries == (entry,)


async def test_side_effects_are_predicted_and_judged_too_but_only_one_figure_is_aimed_at(tmp_path):
    fix = make_fix(MORE, make_effect(0.01, 0.95, tpot_p50=(0.2, 5.0)))
    await Bench(tmp_path, make_verdict(fix)).verify()
    entries = LedgerFile(tmp_path / "ledger.jsonl").read().entries
    assert [(entry.prediction.metric, entry.prediction.aim) for entry in entries] == [
        ("ttft_p50", True),
        ("tpot_p50", False),
    ]
    assert all(entry.outcome is not None for entry in entries)
    assert len({entry.prediction.run for entry in entries}) == 1


async def test_one_broken_off_leaves_its_prediction_open(tmp_path):
    bench = Bench(tmp_path, make_verdict(make_fix(MORE, make_effect(0.01, 0.95))), cut_at=3)
    done = await bench.verify()
    assert done.cut_short
    (entry,) = bench.ledger.read().entries
    assert entry.outcome is None


@pytest.mark.parametrize(
    ("verdict", "nothing"),
    [
        (make_verdict(cause=None), "the verdict is healthy"),
        (make_verdict(make_fix(), cause=Cause.LONG_PROMPTS), "helps against long prompts"),
    ],
)
async def test_where_there_is_nothing_to_try_nothing_is_measured_or_written(tmp_path, verdict, nothing):
    bench = Bench(tmp_path, verdict)
    done = await bench.verify()
    assert nothing in done.nothing
    assert bench.blocks == 0
    assert not bench.ledger.path.exists()


async def test_a_copy_that_does_not_start_leaves_the_verdict_and_an_inconclusive_outcome(tmp_path):
    verdict = make_verdict(make_fix(MORE, make_effect(0.01, 0.95)))
    bench = Bench(tmp_path, verdict, copy_starts=False)
    done = await bench.verify()
    assert done.diagnosed.verdict is verdict
    assert done.nothing == "`phasewise up` failed: no memory"
    assert not done.trusted
    (entry,) = bench.ledger.read().entries
    assert entry.outcome.held is PredictionCheck.INCONCLUSIVE
    assert entry.outcome.reason == done.nothing


async def test_a_fix_that_does_not_fit_the_machine_is_passed_over_for_the_next(tmp_path):
    effect = make_effect(0.01, 0.95)
    bench = Bench(
        tmp_path, make_verdict(make_fix(LeverChange("replicas", 2), effect), make_fix(MORE, effect))
    )
    done = await bench.verify()
    assert done.change == ("pools.main.levers.max_num_seqs: 1 -> 8",)
    (entry,) = bench.ledger.read().entries
    assert entry.prediction.lever == "max_num_seqs"


@pytest.mark.parametrize(
    ("lever", "why"),
    [
        (LeverChange("max_num_seqs", 1), "max_num_seqs is 1 already"),
        (LeverChange("replicas", 2), "cores that are not there"),
    ],
)
async def test_a_fix_that_cannot_be_made_costs_the_fix_and_not_the_verdict(tmp_path, lever, why):
    verdict = make_verdict(make_fix(lever, make_effect(0.01, 0.95)))
    bench = Bench(tmp_path, verdict)
    done = await bench.verify()
    assert done.diagnosed.verdict is verdict
    assert why in done.nothing
    assert done.fix is None
    assert not bench.ledger.path.exists()


async def test_a_ledger_lost_during_a_run_does_not_undo_what_was_measured(tmp_path):
    bench = Bench(tmp_path, make_verdict(make_fix(MORE, make_effect(0.01, 0.95))), ledger_lost_at=8)
    done = await bench.verify()
    (entry,) = done.entries
    assert entry.outcome.held is PredictionCheck.HELD
    assert "cannot be written" in done.nothing
    assert not done.trusted

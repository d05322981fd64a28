from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from phasewise.benchmark.compare.arms import UrlArm
from phasewise.benchmark.compare.compare import measure_pairs
from phasewise.benchmark.run import BenchRun, GeneratorHealth
from phasewise.benchmark.session import RunSpec
from phasewise.benchmark.target import Target
from phasewise.benchmark.workload.arrivals import ClosedLoop
from phasewise.benchmark.workload.plan import Plan, PlanSpec
from phasewise.benchmark.workload.presets import PRESETS, PresetName
from tests.builders import EPOCH_S, make_timeline

ARMS = (UrlArm("http://a"), UrlArm("http://b"))
SPEC = RunSpec(PlanSpec(PRESETS[PresetName.CHAT], ClosedLoop(1), requests=4), seed=100)


class Measuring:
    """Notes what is asked for and answers with a run that is good, void or cut short."""

    def __init__(self, void_at: frozenset[int] = frozenset(), cut_at: int | None = None) -> None:
        self.asked: list[tuple[str, int, str]] = []
        self.void_at = void_at
        self.cut_at = cut_at

    async def __call__(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        number = len(self.asked)
        self.asked.append((url, spec.seed, label))
        run = BenchRun(
            Target(url, "m"),
            Plan.of_singles((), ClosedLoop(1)),
            (make_timeline(),),
            wall_s=1.0,
            started_unix_s=EPOCH_S + number,
            cut_short=number == self.cut_at,
        )
        late = GeneratorHealth(held_back=1)
        return replace(run, health=late) if number in self.void_at else run


async def test_blocks_alternate_and_a_pair_has_the_same_requests():
    measuring = Measuring()
    found = await measure_pairs(ARMS, 4, SPEC, measuring, "pair")
    assert "".join(url[-1] for url, _, _ in measuring.asked) == "abbaabba"
    assert [seed for _, seed, _ in measuring.asked] == [100, 100, 101, 101, 102, 102, 103, 103]
    assert measuring.asked[2][2] == "pair 2/4, B"
    for pair in found.pairs:
        assert (pair.a.target.url, pair.b.target.url) == ("http://a", "http://b")
    assert [run.target.url[-1] for run in found.pairs[1].in_order] == ["b", "a"]
    assert (len(found.pairs), found.void_pairs, found.cut_short) == (4, 0, False)


async def test_a_void_pair_is_measured_again_with_other_requests_and_both_orders_stay_even():
    measuring = Measuring(void_at=frozenset({1}))
    found = await measure_pairs(ARMS, 3, SPEC, measuring, "pair")
    assert (len(found.pairs), found.void_pairs) == (3, 1)
    assert "".join(url[-1] for url, _, _ in measuring.asked) == "ababbaab"
    assert [seed for _, seed, _ in measuring.asked][::2] == [100, 101, 102, 103]


async def test_a_machine_on_which_most_pairs_are_void_says_so_and_keeps_the_good_ones():
    found = await measure_pairs(ARMS, 4, SPEC, Measuring(void_at=frozenset(range(2, 99))), "pair")
    assert found.gave_up.startswith("9 of 10 pairs were void: 1 requests were held back")
    assert len(found.pairs) == 1


class Cancelled(Measuring):
    """Is cancelled in its sixth block."""

    async def __call__(self, url: str, spec: RunSpec, label: str) -> BenchRun:
        if len(self.asked) == 5:
            raise asyncio.CancelledError
        return await super().__call__(url, spec, label)


async def test_a_cancellation_that_is_forgiven_keeps_the_pairs_and_another_does_not():
    found = await measure_pairs(ARMS, 4, SPEC, Cancelled(), "pair", forgives=lambda: True)
    assert (len(found.pairs), found.cut_short) == (2, True)
    with pytest.raises(asyncio.CancelledError):
        await measure_pairs(ARMS, 4, SPEC, Cancelled(), "pair")


@pytest.mark.parametrize(("cut_at", "pairs"), [(0, 0), (3, 1), (5, 2)])
async def test_a_stop_keeps_the_pairs_that_were_whole(cut_at, pairs):
    measuring = Measuring(cut_at=cut_at)
    found = await measure_pairs(ARMS, 4, SPEC, measuring, "pair")
    assert (len(found.pairs), found.cut_short) == (pairs, True)
    assert len(measuring.asked) == cut_at + 1

"""A form that is wrong is told from a machine that is noisy."""

from dataclasses import replace
from math import ceil, exp

import numpy as np
import pytest

from phasewise.costs.fit.misfit import FEWEST_VISITS, TOLERATED, Cell, FormCheck, check_form
from phasewise.costs.fit.solve import FittedCost, Readings, fit_cost
from phasewise.costs.fit.step import StepKind, decoding, prefilling
from tests.costs.step_builders import COST, WORKS, observe

EXACT = FittedCost(COST, front_end_s=0.0)
SEEDS = range(4)


def tiles(work):
    """Tokens are paid for in tiles of 512, begun ones in full."""
    return 0.030 * ceil(work.tokens / 512)


def cache_cliff(work):
    """Context beyond what a cache holds is read six times as slowly."""
    return COST(work) + 5 * COST.kv_read_s_per_token * max(0, work.kv_read_tokens - 8192)


def saturating(work):
    """More work takes hardly more time, as nothing of the fitted form does."""
    return 0.02 + 0.4 * (1 - exp(-work.tokens / 300))


def root(work):
    return 0.02 + 0.01 * work.tokens**0.5


def check(cost, seed, **noise):
    observations = observe(cost, np.random.default_rng(seed), **noise)
    return check_form(fit_cost(Readings.of(observations)), observations)


# --- the right form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        {"readings": 4, "jitter": 0.1},
        {"readings": 1, "jitter": 0.1},
        {"readings": 4, "jitter": 0.05, "mood": 0.1},
        {"readings": 4, "jitter": 0.1, "mood": 0.05, "slowed": 0.33},
    ],
    ids=["jitter", "one reading a visit", "moods", "a third slowed"],
)
def test_noise_is_not_taken_for_a_wrong_form(noise):
    """Over 50 seeds of each noise, 200 in all, no alarm was false; at most 2 of 61 cells were missed."""
    assert [check(COST, seed, **noise).fits for seed in range(6)] == [True] * 6


def test_every_kind_of_step_is_looked_at():
    cells = check(COST, 0).cells
    assert len(cells) == len(WORKS)
    assert {cell.kind for cell in cells} == set(StepKind)
    assert {cell.visits for cell in cells} == {4}


# --- other forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_tiles_are_seen_where_a_tile_is_nearly_full_or_just_begun(seed):
    found = check(tiles, seed, readings=4)
    assert found.fits is False
    nearly_full = min(found.missed, key=lambda cell: cell.off_by)
    just_begun = max(found.missed, key=lambda cell: cell.off_by)
    assert nearly_full.off_by < 0 < just_begun.off_by
    assert nearly_full.work.tokens % 512 > 256 > just_begun.work.tokens % 512


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cache_cliff_is_seen_on_both_its_sides(seed):
    found = check(cache_cliff, seed, readings=4)
    assert found.fits is False
    beyond = max(found.missed, key=lambda cell: cell.off_by)
    before = min(found.missed, key=lambda cell: cell.off_by)
    assert beyond.off_by > 0 > before.off_by
    assert beyond.work.kv_read_tokens > 8192 >= before.work.kv_read_tokens


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cost", [saturating, root])
def test_a_form_that_bends_the_other_way_is_seen_with_slowed_steps_too(cost, seed):
    found = check(cost, seed, readings=4, jitter=0.1, mood=0.05, slowed=0.33)
    assert found.fits is False
    assert {StepKind.PREFILL, StepKind.MIXED} <= {cell.kind for cell in found.missed}


# --- the check itself -------------------------------------------------------------------------------------


def test_cells_furthest_off_come_first():
    offs = [abs(cell.off_by) for cell in check(tiles, 0).cells]
    assert offs == sorted(offs, reverse=True)


def test_a_cell_off_by_a_known_share_is_said_to_be():
    works = [prefilling(64), decoding([500] * 4), decoding([100] * 2)]
    slow = works[1]
    observations = observe(
        lambda work: COST(work) * (1.5 if work == slow else 1.0), np.random.default_rng(0), works, jitter=0.02
    )
    (missed,) = check_form(EXACT, observations).missed
    assert (missed.kind, missed.work) == (StepKind.DECODE, slow)
    assert missed.off_by == pytest.approx(0.5, abs=0.05)


def test_one_odd_cell_is_named_but_condemns_no_form():
    right = make_cell(off_by=0.01, certain=False)
    odd = make_cell(off_by=0.9, certain=True)
    assert FormCheck((odd, right)).missed == (odd,)
    assert FormCheck((odd, right)).fits is True
    assert FormCheck((odd, odd, *[right] * 10)).fits is False


def make_cell(off_by, certain):
    return Cell(StepKind.DECODE, decoding([10]), 4, off_by, certain)


def test_a_cell_is_missed_only_if_it_is_far_off_and_certainly_so():
    assert make_cell(TOLERATED + 0.01, certain=True).missed
    assert make_cell(-TOLERATED - 0.01, certain=True).missed
    assert not make_cell(TOLERATED - 0.01, certain=True).missed
    assert not make_cell(0.9, certain=False).missed


def test_visits_that_disagree_make_a_cell_uncertain():
    """Off by a half on average, but each time by something else."""
    observations = observe(
        lambda work: 1.5 * COST(work), np.random.default_rng(1), WORKS[:5], jitter=0.0, mood=0.6
    )
    assert not check_form(EXACT, observations).missed


def test_readings_of_one_moment_are_one_visit_however_many():
    """A machine that was slow for a second must not look like a form that is wrong."""
    observations = observe(COST, np.random.default_rng(0), WORKS[:5], visits=FEWEST_VISITS - 1, readings=50)
    assert check_form(EXACT, observations).fits is None
    again = [replace(each, at_s=each.at_s + 1e5) for each in observations]
    assert check_form(EXACT, [*observations, *again]).fits is True


def test_nothing_seen_tells_nothing():
    assert check_form(EXACT, []).fits is None

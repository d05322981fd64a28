from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from phasewise.benchmark.calibrate.result import Seen
from phasewise.core.statistics import Interval
from phasewise.costs.fit.step import StepWork, decoding, prefilling
from phasewise.costs.fit.step_fit import CONFIDENCE
from phasewise.report.engine_view import describe, render_calibration
from tests.benchmark.calibrate.builders import MACHINE, MET, MISSED, make_calibration, make_fit


def printed(calibration, width=80):
    console = Console(width=width, file=io.StringIO(), no_color=True, highlight=False)
    console.print(render_calibration(calibration))
    return console.file.getvalue()


def flat(calibration):
    return " ".join(printed(calibration, 200).split())


@pytest.mark.parametrize("seen", Seen)
def test_it_fits_a_narrow_screen_without_colour(seen):
    text = printed(
        make_calibration(seen=seen, cells=(MISSED,) * 3, unreported=12, stolen=0.3, machine=MACHINE)
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text


def test_every_part_is_named_with_its_unit():
    text = flat(make_calibration())
    for words in ("floor: weights and overhead", "56", "ms per step", "the knee", "96", "tokens in a step"):
        assert words in text


def test_what_was_never_seen_is_unknown():
    text = flat(make_calibration())
    row = text[text.index("8192 prompt tokens") :]
    assert "unknown" in row[:60]
    assert "outside the measured range" in row[:60]


def test_a_phase_with_too_few_steps_is_unknown():
    assert "prefill │ 0 │ unknown │ unknown" in flat(make_calibration(make_fit(errors={})))


def test_the_front_end_is_shown_where_clients_timed_it():
    assert "front end and network" in flat(make_calibration())
    never = replace(make_fit(), front_end_s=Interval(0.0, 0.0, CONFIDENCE))
    assert "front end and network" not in flat(make_calibration(never))


def test_a_stock_engine_hears_what_it_loses():
    text = flat(make_calibration(seen=Seen.CLIENT, no_record="no step recorder answers"))
    assert "gaps between tokens, which is less certain: no step recorder answers." in text


def test_a_form_that_misses_is_said_aloud_with_where():
    text = flat(make_calibration(cells=(MISSED,) * 3))
    assert "THE COST MODEL DOES NOT FIT" in text
    assert "600 prompt tokens among 12 streams: 31% shorter than fitted" in text


def test_a_form_that_fits_or_cannot_be_judged_says_so():
    assert "The cost model fits within the noise: 0 of 1 kinds of step d" in flat(
        make_calibration(cells=(MET,))
    )
    assert "too large to judge" in flat(make_calibration(cells=()))


def test_steps_that_were_not_used_and_stolen_time_are_reported():
    text = flat(make_calibration(unreported=12, stolen=0.3))
    assert "12 steps were not used" in text
    assert "took 30% of this machine's CPU time" in text
    assert "not used" not in flat(make_calibration())


def test_weights_are_separated_from_overhead_where_the_machine_is_known():
    assert "269 MB" in flat(make_calibration(machine=MACHINE))
    assert "bound by weights or overhead" in flat(make_calibration())


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (prefilling(64), "64 prompt tokens"),
        (decoding([100]), "1 stream at 100 tokens of context"),
        (decoding([100] * 4), "4 streams at 100 tokens of context"),
        (StepWork(64, 2, 3, 2080, 200), "64 prompt tokens among 2 streams"),
    ],
)
def test_steps_are_described_in_words(work, words):
    assert describe(work) == words


def test_the_machine_that_is_known_has_a_bar_for_math_and_one_for_memory():
    text = flat(make_calibration(machine=MACHINE))
    assert "How busy math and memory are in a step (of what one core of this machine reads 9 GB/s" in text
    assert text.count("math █") + text.count("math ░") == len(make_calibration(machine=MACHINE).busy) > 1
    assert "How busy" not in flat(make_calibration())

"""Fixes stand in the order of what they are predicted to gain; what hurts stands apart."""

from dataclasses import replace

from phasewise.diagnosis.advice.fix import Advice, Figure, LeverChange, by_gain
from phasewise.report.diagnosis.words import prediction_in_words
from tests.benchmark.compare.builders import make_effect, make_fix


def predicted(name, low, high, aims_at=None):
    fix = replace(make_fix(LeverChange("max_num_seqs", 8), make_effect(low, high)), what=name)
    return fix if aims_at is None else replace(fix, aims_at=aims_at)


def unpredicted(name):
    return replace(make_fix(LeverChange("max_num_seqs", 8), None), what=name, unpredictable="no costs")


def names(fixes):
    return [fix.what for fix in fixes]


def test_the_largest_gain_comes_first_and_what_cannot_be_predicted_follows():
    given = (unpredicted("unknown"), predicted("small", 0.8, 0.9), predicted("large", 0.2, 0.4))
    assert names(by_gain(Advice(given)).fixes) == ["large", "small", "unknown"]


def test_what_is_predicted_to_hurt_or_to_change_nothing_does_not_pay():
    found = by_gain(Advice((predicted("hurts", 1.2, 1.6), predicted("idle", 0.99, 1.01), unpredicted("x"))))
    assert names(found.fixes) == ["x"]
    assert names(found.do_not_pay) == ["hurts", "idle"]


def test_a_figure_that_is_not_predicted_decides_nothing():
    found = by_gain(Advice((predicted("other", 1.2, 1.6, aims_at=Figure.ITL_P99),)))
    assert names(found.fixes) == ["other"]


def test_the_objective_decides_and_not_the_figure_that_a_fix_aims_at():
    shifts = predicted("fewer stalls, later starts", 0.2, 0.4)
    shifts = replace(shifts, effect=replace(shifts.effect, gain=-0.3))
    helps = predicted("a little of both", 0.8, 0.9)
    helps = replace(helps, effect=replace(helps.effect, gain=0.5))
    found = by_gain(Advice((shifts, helps)))
    assert names(found.fixes) == ["a little of both"]
    assert names(found.do_not_pay) == ["fewer stalls, later starts"]
    assert prediction_in_words(found.fixes[0]).endswith("; time lost beyond the objective -50%")


def tried(name, gain, lever="max_num_seqs"):
    """A fix that cannot be predicted, but gained so much in one replay."""
    return replace(unpredicted(name), rough_gain=gain, lever=LeverChange(lever, 8))


def test_one_replay_ranks_what_cannot_be_predicted_and_sets_apart_what_loses_more_in_it():
    found = by_gain(Advice((unpredicted("unknown"), tried("hurts", -0.3), tried("helps", 0.4))))
    assert names(found.fixes) == ["helps", "unknown"]
    assert names(found.do_not_pay) == ["hurts"]
    lost = "time lost beyond the objective -40% in one replay of the window; not predictable: no costs"
    assert prediction_in_words(found.fixes[0]) == lost


def test_one_replay_that_shows_no_difference_sets_nothing_apart():
    found = by_gain(Advice((tried("idle", -0.01), unpredicted("unknown"), tried("hardly", 0.01))))
    assert (names(found.fixes), found.do_not_pay) == (["idle", "unknown", "hardly"], ())
    assert prediction_in_words(found.fixes[0]).startswith("about as much time lost")


def test_a_setting_goes_before_an_engine_that_gains_less_than_twice_as_much():
    engine = tried("engine", 0.8, "replicas")
    assert names(by_gain(Advice((engine, tried("setting", 0.5)))).fixes) == ["setting", "engine"]
    assert names(by_gain(Advice((engine, tried("setting", 0.3)))).fixes) == ["engine", "setting"]


def test_an_engine_does_not_pass_a_setting_of_unknown_gain_unless_it_is_predicted():
    setting, engine = unpredicted("setting"), tried("engine", 0.95, "replicas")
    assert names(by_gain(Advice((setting, engine))).fixes) == ["setting", "engine"]
    engine = replace(predicted("engine", 0.2, 0.4), lever=LeverChange("replicas", 2))
    assert names(by_gain(Advice((setting, engine))).fixes) == ["engine", "setting"]


def test_a_risky_fix_stands_last_unless_a_replay_shows_that_less_time_is_lost():
    aims_well = replace(predicted("fewer at once", 0.2, 0.4), risky=True)
    assert names(by_gain(Advice((aims_well, unpredicted("unknown")))).fixes) == ["unknown", "fewer at once"]
    blind = replace(unpredicted("fewer at once"), risky=True)
    assert names(by_gain(Advice((blind, unpredicted("unknown")))).fixes) == ["unknown", "fewer at once"]
    shown = replace(tried("fewer at once", 0.4), risky=True)
    assert names(by_gain(Advice((unpredicted("unknown"), shown))).fixes) == ["fewer at once", "unknown"]

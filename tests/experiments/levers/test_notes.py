"""The notes under the table: which noise floors there are, and what they show."""

from phasewise.experiments.levers.cases import RESTARTED
from phasewise.experiments.levers.notes import reading_notes
from tests.experiments.levers.builders import make_case, make_measured, make_results


def test_the_notes_count_the_floors_and_say_that_some_differ_by_chance():
    case = make_case()
    floors = {case.rows[0].workload.key: make_measured(), RESTARTED: make_measured()}
    text = "\n".join(reading_notes((case,), make_results(case, floors=floors)))
    assert "Noise floors measured: 2," in text
    assert "one floor in twenty" in text
    assert "Noise floor, another start of the same engine: TTFT" in text
    assert "for these two processes" in text


def test_without_a_floor_nothing_is_said_of_chance():
    case = make_case()
    assert "twenty" not in "\n".join(reading_notes((case,), make_results(case)))


def test_reasons_of_cases_and_floors_stand_side_by_side():
    case = make_case(rows=())
    missing = {case.name: "the model does not fit", f"floor/{RESTARTED}": "no memory is left"}
    text = "\n".join(reading_notes((case,), make_results(case, not_measured=missing)))
    assert "the model does not fit" in text
    assert "Noise floor, another start of the same engine: not measured: no memory is left." in text

"""What programs are given by `phasewise levers` stands in its reference."""

from phasewise.experiments.levers.cases import CASES
from phasewise.report.levers.facts import as_facts
from tests.experiments.levers.builders import EQUAL_ANSWERS, PAGING, make_case, make_measured, make_results
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "reference" / "levers.md").read_text()


def names_in(value):
    """Every key of a record, but not those that are names of cases or traffic."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from names_in([*inner.values()] if key in {"noise_floor", "expected"} else inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


def test_every_field_is_documented():
    case = make_case()
    floors = {case.rows[0].workload.key: make_measured()}
    facts = as_facts((case,), make_results(case, outputs=EQUAL_ANSWERS, paging=PAGING, floors=floors))
    silent = {name for name in names_in(facts) if f"`{name}`" not in PAGE}
    assert {name.removesuffix("_range") for name in silent} <= {"paged_waste", "reserved_waste"}


def test_every_lever_and_case_is_documented():
    assert [name for case in CASES for name in (case.lever, case.name) if f"`{name}`" not in PAGE] == []

"""What users can type or read stands in the documentation, and its links lead somewhere."""

import ast
import importlib.util
import json
import re
from dataclasses import fields

import pytest

from phasewise.core.timeline import TTFT_PARTS
from phasewise.diagnosis.finding import Cause
from phasewise.experiments.compare.verdict import ComparisonResult
from phasewise.loadgen.results import BenchReport
from tests.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def tool_named(name, folder="tools"):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_option_is_documented():
    """Fixed by: python tools/commands_page.py"""
    tool = tool_named("commands_page")
    assert tool.PAGE.read_text() == tool.page()


def test_the_figures_of_judged_runs_are_those_on_record():
    """Fixed by: python tools/diagnosis_page.py"""
    tool = tool_named("diagnosis_page")
    assert tool.PAGE.read_text() == tool.page()


def test_the_page_of_validation_reports_is_made_from_those_that_are_there():
    """Fixed by: python tools/validated_page.py"""
    tool = tool_named("validated_page")
    assert tool.PAGE.read_text() == tool.page()
    assert list(tool.REPORTS.glob("*.json"))


def test_the_picture_of_a_stall_is_drawn_from_its_record():
    """Fixed by: python benchmarks/stall_picture.py"""
    drawer = tool_named("stall_picture", "benchmarks")
    trace = json.loads(drawer.RECORD.read_text())["traces"]["mixed"]
    assert drawer.PICTURE.read_text() == drawer.draw(trace)


@pytest.mark.parametrize(
    ("page", "own_score"),
    [
        ("README.md", "10 of 10 hold"),
        ("docs/measured.md", "phasewise engine validate"),
        ("docs/diagnosis-measured.md", "all are judged right"),
    ],
)
def test_the_score_on_scenes_planted_by_others_comes_before_our_own(page, own_score):
    text = (ROOT / page).read_text()
    assert re.search(r"30 scenes planted with only the docs at hand", text)
    others, own = (re.search(score, text).start() for score in (r"15 of 30", own_score))
    assert others < own


def test_every_option_has_a_help_text():
    silent = [
        f"{name} {parameter.opts[0]}"
        for name, command in tool_named("commands_page").commands()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert silent == []


@pytest.mark.parametrize("page", ["reference/findings.md", "explanation/causes.md"])
def test_every_cause_is_documented(page):
    text = (ROOT / "docs" / page).read_text()
    assert [cause for cause in Cause if f"`{cause}`" not in text] == []


def test_every_part_of_ttft_is_documented():
    page = (ROOT / "docs" / "explanation" / "where-the-milliseconds-go.md").read_text()
    assert [part for part in TTFT_PARTS if f"`{part}`" not in page] == []


@pytest.mark.parametrize("record", [BenchReport, ComparisonResult], ids=lambda record: record.__name__)
def test_every_field_of_a_result_for_programs_is_documented(record):
    page = (ROOT / "docs" / "reference" / "bench-report.md").read_text()
    hidden = {"goodput_per_s", "spreads"}  # stands within `goodput`; only drawn, and not in the record
    assert [
        each.name for each in fields(record) if f"`{each.name}`" not in page and each.name not in hidden
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text())
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    targets = [(page.parent / link if link else page, anchor) for link, anchor in links if anchor]
    assert [anchor for target, anchor in targets if anchor not in anchors_of(target.read_text())] == []


def anchors_of(text):
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_no_file_names_a_package_host():
    hosts = re.compile(r"(pypi\.org|pythonhosted|download\.pytorch|extra-index-url|registry\.npmjs)")
    named = [
        str(path.relative_to(ROOT))
        for pattern in ("*.toml", "*.txt", "Makefile", ".ci/run", "src/**/*.txt", "engine_plugin/*.toml")
        for path in ROOT.glob(pattern)
        if hosts.search(path.read_text())
    ]
    assert named == []


def messages_of(path):
    """What a module may print: its strings, but for docstrings."""
    tree = ast.parse(path.read_text())
    unprinted = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unprinted:
            yield node.value


def test_no_message_names_a_page_that_is_not_installed():
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "engine_plugin").rglob("*.py")])
    named = {str(path.relative_to(ROOT)): [it for it in messages_of(path) if "docs/" in it] for path in files}
    assert {path: texts for path, texts in named.items() if texts} == {}


def test_no_help_of_a_command_names_a_page_that_is_not_installed():
    assert "docs/" not in tool_named("commands_page").page()

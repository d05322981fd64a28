"""What users can type or read stands in the documentation, and its links lead somewhere."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from phasewise.bench.report import BenchReport
from phasewise.compare.verdict import ComparisonResult
from phasewise.diagnosis.cause import Cause
from phasewise.model.timeline import TTFT_PARTS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def tool_named(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_option_is_documented():
    """Mended by: python tools/commands_page.py"""
    tool = tool_named("commands_page")
    assert tool.PAGE.read_text() == tool.page()


def test_the_figures_of_judged_runs_are_those_on_record():
    """Mended by: python tools/diagnosis_page.py"""
    tool = tool_named("diagnosis_page")
    assert tool.PAGE.read_text() == tool.page()


def test_every_option_has_a_help_text():
    tool = tool_named("commands_page")
    silent = [line for line in tool.page().splitlines() if re.match(r"\| `[^`]+` \|\s+\|", line)]
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
    hidden = {"goodput_per_s"}  # stands within `goodput`
    assert [
        each.name for each in fields(record) if f"`{each.name}`" not in page and each.name not in hidden
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_no_file_names_a_package_host():
    hosts = re.compile(r"(pypi\.org|pythonhosted|download\.pytorch|extra-index-url|registry\.npmjs)")
    named = [
        str(path.relative_to(ROOT))
        for pattern in ("*.toml", "*.txt", "Makefile", ".ci/run", "src/**/*.txt", "engine_plugin/*.toml")
        for path in ROOT.glob(pattern)
        if hosts.search(path.read_text())
    ]
    assert named == []

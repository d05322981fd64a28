"""What users can type or read stands in the documentation, and its links lead somewhere."""

import ast
import importlib.util
import json
import re
from dataclasses import fields

import pytest

from phasewise.benchmark.compare.verdict import ComparisonResult
from phasewise.benchmark.results import BenchReport
from phasewise.core.timeline import TTFT_PARTS
from phasewise.diagnosis.finding import Cause
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
def test_the_score_on_scenes_planted_from_the_docs_comes_before_our_own(page, own_score):
    text = (ROOT / page).read_text()
    assert re.search(r"30 scenes planted with only the docs at hand", text)
    others, own = (re.search(score, text).start() for score in (r"15 of 30", own_score))
    assert others < own


def test_every_figure_fits_its_cell_and_names_a_command_that_is_there():
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in (ROOT / "docs" / "measured.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| what |")
    ]
    assert len(rows) > 50
    assert [cell for row in rows for cell in row if len(cell) > 200] == []
    for *_, command in rows:
        script = re.search(r"(\w+\.py)", command)
        assert (ROOT / "benchmarks" / script[1]).exists() if script else "phasewise engine" in command


def test_every_option_has_a_help_text():
    silent = [
        f"{name} {parameter.opts[0]}"
        for name, command in tool_named("commands_page").commands()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert silent == []


def test_every_cause_is_documented():
    text = (ROOT / "docs" / "reference" / "findings.md").read_text()
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


def test_every_place_that_contributing_names_is_there():
    """A place is a path below the repository or src/phasewise, or a file and a name in it, `a/b.py: name`."""
    named = re.findall(r"`([^`\s]*/[^`\s:]*?)(?:: ([\w.]+))?`", (ROOT / "CONTRIBUTING.md").read_text())
    assert sum(bool(name) for _, name in named) > 12
    for path, name in named:
        found = [folder / path for folder in (ROOT, ROOT / "src" / "phasewise") if (folder / path).exists()]
        assert found or path == ".phasewise/", path
        if name:
            inner = name.rpartition(".")[2]
            defined = rf"^\s*(async def|def|class) {inner}\b|^{inner}\b.* = "
            assert re.search(defined, found[0].read_text(), re.MULTILINE), f"{path}: {name}"


def test_contributing_says_what_is_in_each_package():
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", layout, re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == {path.parent.name for path in (ROOT / "src" / "phasewise").glob("*/__init__.py")}


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

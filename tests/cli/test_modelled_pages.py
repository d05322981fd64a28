"""What the documentation shows of model sheets is what the commands print today."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phasewise.cli.app import app
from phasewise.costs.roofline.capacity import UniformTraffic
from phasewise.costs.roofline.lever_effects import lever_effects
from phasewise.costs.roofline.step_demand import decodes
from phasewise.report.console import out
from tests.costs.deployments import deploy
from tests.paths import ROOT

PAGES = ("docs/explanation/levers.md", "docs/how-to/size-a-deployment.md")
BLOCK = re.compile(r"^```\n\$ phasewise (model sheet [^\n]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXCERPTS = [
    pytest.param(command, shown.splitlines(), id=f"{Path(page).stem}-{number}")
    for page in PAGES
    for number, (command, shown) in enumerate(BLOCK.findall((ROOT / page).read_text()))
]


@cache
def printed_lines(command):
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.exception
    return [line.rstrip() for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("command", "shown"), EXCERPTS)
def test_an_excerpt_is_what_its_command_prints(command, shown, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(out, "width", 80)
    rest = iter(printed_lines(command))
    assert [line for line in shown if line not in rest] == []


def test_figures_between_the_excerpts_are_those_of_the_physics():
    page = " ".join((ROOT / PAGES[0]).read_text().split())
    assert "135M parameters, 6,100 tokens" in page
    assert deploy("smollm2-135m").quadratic_from_tokens() == pytest.approx(6100, rel=0.01)
    assert "for a 70B model at 104,000" in page
    assert deploy("llama-3-70b", gpus=8).quadratic_from_tokens() == pytest.approx(104_000, rel=0.01)
    assert "TPOT alone x 0.93 and x 0.90" in page
    w8a8, w4a16 = lever_effects(deploy("smollm2-135m"), UniformTraffic(2000, 300), 1)[:2]
    assert (round(w8a8.tpot_alone, 2), round(w4a16.tpot_alone, 2)) == (0.93, 0.90)
    assert "12.7 billion weights for one token and 46.6 billion for sixty-four" in page
    read = [deploy("mixtral-8x7b").demand(decodes(batch, 0)).weight_bytes / 2e9 for batch in (1, 64)]
    assert read == pytest.approx([12.7, 46.6], abs=0.06)
    assert "two replicas of 8 carry 15.6 requests/s, one of 16 carries 10.7" in page


def test_both_pages_are_checked():
    assert len(EXCERPTS) > 10

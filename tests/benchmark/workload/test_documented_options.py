"""Every option of the how-to page can be typed as it stands there and comes to a plan."""

# ruff: noqa: S311 - seeds make tests repeat, they keep no secrets
from __future__ import annotations

import re
import shlex
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from typer.testing import CliRunner

from phasewise.api import load_options
from phasewise.benchmark.workload.arrivals import Spacing
from phasewise.benchmark.workload.plan import PlanSpec, make_plan
from phasewise.cli import bench
from phasewise.cli.app import app
from phasewise.core.slo import DEFAULT_SLO, parse_slo
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "measure-and-compare.md").read_text()
COMMANDS = re.findall(r"^phasewise (.+)$", PAGE, re.MULTILINE)
# Options that stand there without a value are spoken of, not shown.
OPTIONS = [text for text in re.findall(r"`(--[^`]+)`", PAGE) if " " in text]
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,480,10\n2023-11-16 18:17:04,110,27\n"


class Understood(Exception):
    """Carries the specification out of a command before it measures anything."""


def spec_of(arguments: list[str], monkeypatch) -> PlanSpec:
    def capture(**fields) -> None:
        raise Understood(PlanSpec(**fields))

    monkeypatch.setattr(load_options, "PlanSpec", capture)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, Understood), result.exception or result.output
    return result.exception.args[0]


def plan_all(spec: PlanSpec, arguments: list[str]) -> None:
    assert make_plan(spec, Random(0)).requests
    shown = dict(pairwise(arguments))
    if "--sweep" in shown:
        for load in bench.parse_sweep(shown["--sweep"], Spacing.POISSON, 1.0):
            assert make_plan(replace(spec, load=load), Random(0)).requests
    if "--slo" in shown:
        assert parse_slo(shown["--slo"], DEFAULT_SLO)


@pytest.fixture(autouse=True)
def _beside_a_trace(tmp_path, monkeypatch):
    (tmp_path / "azure_2023_conv.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)


def test_the_page_shows_commands_and_options():
    assert {command.split()[0] for command in COMMANDS} == {"bench", "compare"}
    assert "--shared-prefix-tokens 500 --shared-prefixes 10" in OPTIONS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shown_comes_to_a_plan(command, monkeypatch):
    arguments = shlex.split(command)
    plan_all(spec_of(arguments, monkeypatch), arguments)


@pytest.mark.parametrize("options", OPTIONS)
def test_options_shown_come_to_a_plan(options, monkeypatch):
    arguments = ["bench", "http://127.0.0.1:9", *shlex.split(options)]
    plan_all(spec_of(arguments, monkeypatch), arguments)

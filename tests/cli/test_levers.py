"""`phasewise levers` as it is typed."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from phasewise.cli.app import app
from tests.paths import ROOT


def show(*options):
    return CliRunner().invoke(app, ["levers", *options], env={"COLUMNS": "80"})


def test_the_table_says_which_lever_helps_which_phase_and_why_in_80_columns():
    result = show(str(ROOT / "examples" / "models" / "llama-3-8b.json"))
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for lever in ("larger batch", "continuous batching", "FlashAttention", "chunked prefill", "GQA, MQA"):
        assert lever in result.stdout
    assert "llama-3-8b on 1 x H100" in result.stdout


def test_the_table_is_there_for_programs_and_its_fields_are_documented():
    facts = json.loads(show("--json").stdout)
    by_name = {it["lever"]: it for it in facts["levers"]}
    assert by_name["prefix caching"]["helps_prefill"] == "yes"
    assert by_name["prefix caching"]["helps_decode"] == "no"
    assert by_name["chunked prefill"]["helps_prefill"] == "costs"
    page = (ROOT / "docs" / "explanation" / "levers.md").read_text()
    assert [name for name in (*facts, *facts["levers"][0]) if f"`{name}`" not in page] == []


def test_a_device_needs_a_model():
    assert "phasewise levers MODEL" in show("--gpu", "A100").exception.hint


def test_the_table_in_the_docs_is_what_the_command_shows():
    columns = ("helps_prefill", "helps_decode", "why", "modelled")
    rows = [
        f"| **{lever['lever']}** | {' | '.join(lever[column] for column in columns)} |\n"
        for lever in json.loads(show("--json").stdout)["levers"]
    ]
    assert len(rows) > 10
    assert "".join(rows) in (ROOT / "docs" / "explanation" / "levers.md").read_text()

"""Every command's help says what its values mean, in panels, and each default once."""

from __future__ import annotations

import re

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from phasewise.cli.app import app


def walk(words, command):
    """Every command and group, with the words that call it."""
    yield words, command
    if isinstance(command, TyperGroup):
        for name in command.list_commands(None):
            yield from walk((*words, name), command.get_command(None, name))


EVERY = dict(walk((), get_command(app)))


@pytest.fixture(params=EVERY, ids=" ".join)
def command(request):
    return EVERY[request.param]


@pytest.fixture
def shown(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    words = next(words for words, each in EVERY.items() if each is command)
    return CliRunner().invoke(app, [*words, "--help"]).output


def test_no_help_names_a_type_of_python_where_a_value_has_a_meaning(command, shown):
    assert "Show this message and exit." in shown
    assert "<bool>" not in shown
    options = [line for line in shown.splitlines() if re.match(r"│ [* ]*--", line)]
    assert [line for line in options if re.search(r"<(str|int|float|path|text)\b", line)] == []


def test_help_stands_in_a_panel_beside_other_options(command, shown):
    if any(each.param_type_name == "option" for each in command.params):
        panels = re.findall(r"╭─ (?:.|\n)*?╰─", shown)
        (own,) = [panel for panel in panels if "--help " in panel]
        assert len(re.findall(r"│ [* ]*--", own)) > 1


def test_a_default_is_shown_once_and_in_one_form(command):
    texts = {each.opts[0]: each.help or "" for each in command.params}
    assert [name for name, text in texts.items() if re.search(r"Default|\(default[^:]", text)] == []
    twice = [each for each in command.params if "(default:" in (each.help or "") and each.default]
    assert [each.opts[0] for each in twice] == []


def test_paragraphs_break_where_the_terminal_does(command):
    assert all("\n" not in part for part in (command.help or "").split("\n\n"))

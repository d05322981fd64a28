"""The words that we gave up for the field's stay given up: in src, docs, examples and every `--help`."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from phasewise.cli.app import app
from tests.paths import ROOT
from tools.words import TABLE, hits_in, hits_under


def test_src_docs_and_examples_use_the_fields_words():
    found = [
        f"{hit.where}:{hit.line}: {hit.word!r}: say {hit.say}" for hit in hits_under(ROOT, *TABLE["where"])
    ]
    assert not found, "\n".join(found)


def test_every_help_uses_the_fields_words():
    pages = list(helps((), typer.main.get_command(app)))
    assert len(pages) > 15
    found = [hit for name, text in pages for hit in hits_in(text, f"phasewise {name} --help")]
    assert not found, found


@pytest.mark.parametrize(
    "sentence",
    [
        "the KV is handed over",
        "phasewise_hand_overs_total",
        "class HandOverOutcome:",
        "a request stands in line",
        "the worker has no room",
        "its breaker rests for a while",
        "the gateway refuses the key",
        "max_running: 8",
        "what the engine told",
        "quantise the weights",
        "the residual",
    ],
)
def test_a_word_that_was_given_up_is_found(sentence):
    assert list(hits_in(sentence, "here"))


@pytest.mark.parametrize(
    "sentence",
    [
        "placement of requests",
        "connection refused",
        "leave room for the answer",
        "on the command line",
        "the rest of it",
        "line 3",
    ],
)
def test_the_same_letters_in_another_sense_are_fine(sentence):
    assert not list(hits_in(sentence, "here"))


def helps(path, command):
    """Every command's help as it is printed, wrapped or not."""
    text = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"}).output
    yield " ".join(path), re.sub(r"\s*\n\s*", "\n", text)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from helps((*path, name), command.get_command(None, name))

"""The tokens of an answer as a tokenizer of Llama 2's kind reads them; the library is the one engines use."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.gateway.upstream.test_tokenizing import plan_for, reported, tokens
from tests.real_engine import ROOT

pytestmark = pytest.mark.real

SCRIPT = Path(__file__).with_name("space_putting_tokenizer.py")
PROMPT = "[INST] Say it [/INST]"
TEXTS = [
    " Hello! I am here.",
    "Hello there",
    "  Two spaces.",
    "  ",
    " Once\n\n",
    "\nOnce upon",
    "\n    return x\n",
    " caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}",
]


class Tokenizer:
    """The tokenizer in the engine's own environment."""

    def __init__(self, process):
        self._process = process

    def _ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def read(self, text):
        return self._ask(text)

    def spell(self, ids):
        return self._ask(ids)

    def answer_to(self, question):
        ids, words = self.read(PROMPT if "messages" in question else question["prompt"])
        return tokens(*ids, strs=words)


@pytest.fixture(scope="module")
def tokenizer():
    home = Path(os.environ.get("PHASEWISE_HOME") or ROOT / ".phasewise")
    command = [home / "engine" / "bin" / "python", SCRIPT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Tokenizer(process)
        process.stdin.close()


@pytest.mark.parametrize("text", TEXTS)
def test_read_alone_a_text_gets_a_space_that_does_not_show_alone(tokenizer, text):
    ids, words = tokenizer.read(text)
    assert words[0].startswith("\N{LOWER ONE EIGHTH BLOCK}")
    assert tokenizer.spell(ids) == text
    prompt_ids, _ = tokenizer.read(PROMPT)
    assert tokenizer.spell(prompt_ids + ids) == PROMPT + " " + text


@pytest.mark.parametrize("text", TEXTS)
async def test_the_tokens_to_go_on_from_spell_the_text_behind_the_prompt(tokenizer, text):
    so_far, _ = await reported(
        plan_for(json.dumps(text)[1:-1].encode()), tokenizer.answer_to, tokenizer.spell
    )
    assert tokenizer.spell(so_far.prompt_ids + so_far.answer_ids) == PROMPT + text


@pytest.mark.parametrize("words", range(1, 8))
async def test_they_are_those_that_stand_in_the_whole(tokenizer, words):
    """A text that is read in one go with its prompt has the same tokens, wherever a word ends."""
    text = " Once upon a time there was a lighthouse."
    begun = "".join(f" {word}" for word in text.split()[:words])
    so_far, _ = await reported(plan_for(begun.encode()), tokenizer.answer_to, tokenizer.spell)
    whole, _ = tokenizer.read(PROMPT + text)
    transferred = so_far.prompt_ids + so_far.answer_ids
    assert transferred == whole[: len(transferred)]

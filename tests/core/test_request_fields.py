"""The table of request fields is whole, and no other file lists fields by name."""

from __future__ import annotations

import ast
from typing import get_args, get_type_hints

import pytest

from phasewise.core.request import WITH_KNOWN_FIELDS, Endpoint
from phasewise.core.request_fields import FIELDS, INSTEAD, PROMPT_FIELD, ROWS, RequestField
from tests.paths import ROOT

SRC = ROOT / "src" / "phasewise"
DECIDE_BY_FIELDS = [*sorted((SRC / "gateway").rglob("*.py")), SRC / "semantic_match" / "identity.py"]
NOT_LISTS = (
    {"messages", "model", "prompt", "system", "text"},  # types of fields, in openapi.py
    {"messages", "model"},  # what a question to the cache has in other places, in cache_routes.py
    {"audio", "function_call", "reasoning"},  # parts of a reply, in response.py
    {"conversation", "padding", "truncation"},  # parameters of the function that renders prompts
)


def words_of(column):
    hint = get_type_hints(RequestField)[column]
    return {word for it in (hint, *get_args(hint)) for word in get_args(it) if isinstance(word, str)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_cell_holds_a_word_of_its_column(row):
    for column in ("type", "prefill", "resume", "prefix"):
        assert getattr(row, column) in {None, *words_of(column)}


@pytest.mark.parametrize("endpoint", Endpoint)
def test_no_field_has_two_rows_on_an_endpoint(endpoint):
    names = [row.name for row in ROWS if endpoint in row.endpoints]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_field_passed_to_an_engine_that_writes_is_decided_on(row):
    if row.is_passed_on and any(endpoint.is_completion for endpoint in row.endpoints):
        assert row is FIELDS[row.name]
        assert row.prefill is not None
        assert (row.resume is None) != (row.obstacle is None)


def test_every_endpoint_has_one_prompt():
    assert set(PROMPT_FIELD) == set(WITH_KNOWN_FIELDS)
    assert sum(len(row.endpoints) for row in ROWS if row.prefix == "prompt") == len(WITH_KNOWN_FIELDS)


def test_what_to_send_instead_is_said_of_unsupported_fields_alone():
    assert set(INSTEAD) <= {row.name for row in ROWS if row.type == "unsupported"}


def lists_of_fields(source):
    """Literals that name two fields or more; reading one field's value is nobody else's knowledge."""
    tree = ast.parse(source)
    slots = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and is_slots(node)]
    tables = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set) and node not in slots:
            items = node.elts
        elif isinstance(node, ast.Dict) and node in tables:
            items = node.keys
        else:
            continue
        named = {it.value for it in items if isinstance(it, ast.Constant) and it.value in FIELDS}
        if len(named) > 1:
            yield named


def is_slots(node):
    return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__slots__"


@pytest.mark.parametrize("path", DECIDE_BY_FIELDS, ids=lambda path: str(path.relative_to(SRC)))
def test_no_other_file_lists_fields(path):
    assert [named for named in lists_of_fields(path.read_text()) if named not in NOT_LISTS] == []


def test_the_check_sees_lists_of_fields():
    source = "A = ('seed', 'stop')\nB: dict = {'n': 1, 'echo': 2}\nfor x in {'tools', 'user'}: C = ['n']"
    assert sorted(map(sorted, lists_of_fields(source))) == [
        ["echo", "n"],
        ["seed", "stop"],
        ["tools", "user"],
    ]

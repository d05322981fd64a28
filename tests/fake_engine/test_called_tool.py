"""The fake engine finds the tool that an answer must call, and survives whatever a client sends as one."""

import pytest

from phasewise.fake_engine.wire_requests import called_tool

NOTE = {"type": "function", "function": {"name": "note"}}


@pytest.mark.parametrize(
    ("choice", "tools", "called"),
    [
        (NOTE, [], "note"),
        ({"type": "tool", "name": "note"}, [], "note"),
        ("required", [NOTE], "note"),
        ({"type": "any"}, [{"name": "note"}], "note"),
        ("auto", [NOTE], None),
        ("required", [], None),
    ],
)
def test_a_forced_call_names_its_tool(choice, tools, called):
    assert called_tool({"tool_choice": choice, "tools": tools}) == called


@pytest.mark.parametrize("choice", [{"type": ["function"]}, {"type": "function", "function": [1]}, [], 5, {}])
def test_what_is_no_choice_calls_no_tool_by_name(choice):
    assert not called_tool({"tool_choice": choice, "tools": [7]})

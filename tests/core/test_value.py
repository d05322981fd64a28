"""A noun is a value: equal ones are one key, and a changed one is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phasewise.core.value import value


@value
class Place:
    name: str
    floor: int = 0


def test_equal_nouns_are_one_key():
    assert {Place("desk"): 1}[Place("desk", floor=0)] == 1
    assert Place("desk") != Place("desk", floor=1)


def test_a_changed_noun_is_another():
    desk = Place("desk")
    assert (replace(desk, floor=2), desk) == (Place("desk", 2), Place("desk", 0))


def test_a_noun_has_no_room_for_what_it_was_not_given():
    with pytest.raises(AttributeError):
        Place("desk").colour = "green"

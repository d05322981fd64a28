"""Keys are known by hash; without keys the door is open, without an admin key the admin's is shut."""

from __future__ import annotations

import pytest

from phasewise.config import ApiKey
from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.auth import ANYONE, Caller, Doorkeeper, key_sha256

KEYS = (
    ApiKey(sha256=key_sha256("one"), tenant="a", priority=3, slo_class="fast"),
    ApiKey(sha256=key_sha256("two")),
)


def refused(call, *arguments):
    with pytest.raises(RequestRefused) as caught:
        call(*arguments)
    return caught.value


def test_a_key_tells_whose_request_it_is():
    door = Doorkeeper(KEYS)
    assert door.caller(b"Bearer one") == Caller("a", 3, "fast")
    assert door.caller(b"bearer  two ") == Caller()


@pytest.mark.parametrize("given", [None, b"", b"Bearer", b"Bearer ", b"Bearer three", b"Basic one", b"one"])
def test_a_wrong_or_missing_key_is_refused_without_repeating_it(given):
    error = refused(Doorkeeper(KEYS).caller, given)
    assert error.kind is RefusalKind.UNAUTHENTICATED
    assert "three" not in str(error)


def test_without_configured_keys_everyone_may_ask():
    assert Doorkeeper().caller(None) is ANYONE


def test_a_client_key_does_not_open_the_admin_routes():
    door = Doorkeeper(KEYS, key_sha256("admin"))
    door.check_admin(b"Bearer admin")
    assert refused(door.check_admin, b"Bearer one").kind is RefusalKind.UNAUTHENTICATED
    assert refused(door.check_admin, None).kind is RefusalKind.UNAUTHENTICATED


def test_without_an_admin_key_the_admin_routes_are_closed_and_say_how_to_open_them():
    error = refused(Doorkeeper().check_admin, b"Bearer anything")
    assert error.kind is RefusalKind.FORBIDDEN
    assert "admin_key_sha256" in str(error)

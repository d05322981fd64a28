"""Keys are known by hash; without keys the door is open, without an admin key the admin's is shut."""

from __future__ import annotations

import pytest

from phasewise.config import ApiKey, GatewayConfig, SloClass
from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.auth import Caller, Doorkeeper, key_sha256
from phasewise.model.limits import NO_LIMITS, Limits

KEYS = (
    ApiKey(sha256=key_sha256("one"), tenant="a", priority=3, slo_class="fast", max_concurrent=2),
    ApiKey(sha256=key_sha256("two")),
)


def doorkeeper(keys=(), admin_key_sha256=None):
    classes = (SloClass(name="fast", max_wait_s=0.5),)
    return Doorkeeper(GatewayConfig(api_keys=keys, admin_key_sha256=admin_key_sha256, slo_classes=classes))


def refused(call, *arguments):
    with pytest.raises(RequestRefused) as caught:
        call(*arguments)
    return caught.value


def test_a_key_tells_whose_request_it_is():
    door = doorkeeper(KEYS)
    one = door.caller(b"Bearer one")
    assert (one.tenant, one.priority, one.slo_class, one.max_wait_s) == ("a", 3, "fast", 0.5)
    assert one.limits == Limits(max_concurrent=2)
    two = door.caller(b"bearer  two ")
    assert (two.tenant, two.limits) == ("default", NO_LIMITS)
    assert one.key_id != two.key_id


@pytest.mark.parametrize("given", [None, b"", b"Bearer", b"Bearer ", b"Bearer three", b"Basic one", b"one"])
def test_a_wrong_or_missing_key_is_refused_without_repeating_it(given):
    error = refused(doorkeeper(KEYS).caller, given)
    assert error.kind is RefusalKind.UNAUTHENTICATED
    assert "three" not in str(error)


def test_without_configured_keys_everyone_may_ask():
    assert doorkeeper().caller(None) == Caller()


def test_a_client_key_does_not_open_the_admin_routes():
    door = doorkeeper(KEYS, key_sha256("admin"))
    door.check_admin(b"Bearer admin")
    assert refused(door.check_admin, b"Bearer one").kind is RefusalKind.UNAUTHENTICATED
    assert refused(door.check_admin, None).kind is RefusalKind.UNAUTHENTICATED


def test_without_an_admin_key_the_admin_routes_are_closed_and_say_how_to_open_them():
    error = refused(doorkeeper().check_admin, b"Bearer anything")
    assert error.kind is RefusalKind.FORBIDDEN
    assert "admin_key_sha256" in str(error)

"""Keys are known by hash; without keys the door is open, without an admin key the admin's is shut."""

from __future__ import annotations

import pytest

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import NO_LIMITS, Limits
from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, GatewayConfig, SloClass
from phasewise.gateway.api import auth
from phasewise.gateway.api.auth import Authenticator, key_sha256
from tests.gateway.harness import ADMIN_KEY, running_gateway

KEYS = (
    ApiKey(sha256=key_sha256("one"), tenant="a", priority=3, slo_class="fast", max_concurrent=2),
    ApiKey(sha256=key_sha256("two")),
)


def authenticator(keys=(), admin_key_sha256=None):
    classes = (SloClass(name="fast", max_wait_s=0.5),)
    return Authenticator(GatewayConfig(api_keys=keys, admin_key_sha256=admin_key_sha256, slo_classes=classes))


def rejected(call, *arguments):
    with pytest.raises(RequestRejected) as caught:
        call(*arguments)
    return caught.value


def test_a_key_identifies_the_caller():
    door = authenticator(KEYS)
    one = door.caller(b"Bearer one")
    assert (one.tenant, one.priority, one.slo_class, one.max_wait_s) == ("a", 3, "fast", 0.5)
    assert one.limits == Limits(max_concurrent=2)
    two = door.caller(b"bearer  two ")
    assert (two.tenant, two.limits) == ("default", NO_LIMITS)
    assert one.key_id != two.key_id


@pytest.mark.parametrize("given", [None, b"", b"Bearer", b"Bearer ", b"Bearer three", b"Basic one", b"one"])
def test_a_wrong_or_missing_key_is_rejected_without_repeating_it(given):
    error = rejected(authenticator(KEYS).caller, given)
    assert error.kind is RejectionKind.UNAUTHENTICATED
    assert "three" not in str(error)


def test_loading_keys_costs_no_work_for_keys_that_nobody_uses(monkeypatch):
    salted = []
    salt_of = auth.tenant_salt
    monkeypatch.setattr(auth, "tenant_salt", lambda *of: salted.append(of) or salt_of(*of))
    keys = tuple(ApiKey(sha256=key_sha256(str(number)), tenant=f"t{number}") for number in range(100))
    door = authenticator(keys)
    first = door.caller(b"Bearer 7")
    assert door.caller(b"Bearer 7") is first
    assert len(salted) == 1
    door.set_keys(GatewayConfig(api_keys=keys[8:]))
    assert rejected(door.caller, b"Bearer 7").kind is RejectionKind.UNAUTHENTICATED
    assert door.caller(b"Bearer 8").tenant == "t8"


def test_a_client_key_does_not_open_the_admin_routes():
    door = authenticator(KEYS, key_sha256("admin"))
    door.check_admin(b"Bearer admin")
    assert rejected(door.check_admin, b"Bearer one").kind is RejectionKind.UNAUTHENTICATED
    assert rejected(door.check_admin, None).kind is RejectionKind.UNAUTHENTICATED


def test_without_an_admin_key_the_admin_routes_are_closed_and_say_how_to_open_them():
    error = rejected(authenticator().check_admin, b"Bearer anything")
    assert error.kind is RejectionKind.FORBIDDEN
    assert "admin_key_sha256" in str(error)


async def test_metrics_ask_for_their_key_if_there_is_one():
    options = {"metrics_key_sha256": key_sha256("scraper"), "api_keys": [{"sha256": key_sha256("client")}]}
    async with running_engines(1) as engines, running_gateway(engines, **options) as gateway:
        statuses = {
            key: (await gateway.fetch("GET", "/metrics", headers=bearer(key))).status
            for key in (None, "wrong", "client", "scraper", ADMIN_KEY)
        }
    assert statuses == {None: 401, "wrong": 401, "client": 401, "scraper": 200, ADMIN_KEY: 200}


def bearer(key):
    return [] if key is None else [(b"authorization", f"Bearer {key}".encode())]

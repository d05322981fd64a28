"""Tenants' salts: one for each, made from a secret, spliced into bodies."""

from __future__ import annotations

import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.fake_engine.fleet import running_engines
from phasewise.fleet.config import ApiKey, GatewayConfig
from phasewise.gateway.api.auth import Authenticator, key_sha256, salted, tenant_salt
from tests.gateway.harness import chat_body, running_gateway

SECRET = b"s" * 32
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def keys(**tenants):
    return tuple(ApiKey(sha256=key_sha256(key), tenant=tenant) for key, tenant in tenants.items())


def salt_of(door, key):
    return door.caller(b"Bearer " + key.encode()).salt


@given(
    fields=st.dictionaries(st.text(), JSON, min_size=1, max_size=5),
    space=st.sampled_from([b"", b" ", b"\r\n\t "]),
)
def test_a_salted_body_has_the_salt_and_everything_it_had(fields, space):
    fields.pop("cache_salt", None)
    fields["model"] = "m"
    body = orjson.dumps(fields) + space
    assert orjson.loads(salted(body, b"abc")) == {**fields, "cache_salt": "abc"}
    assert salted(body, None) is body


@given(first=st.text(max_size=20), second=st.text(max_size=20))
def test_tenants_have_different_salts_of_a_form_that_engines_take(first, second):
    salts = [tenant_salt(SECRET, tenant) for tenant in (first, second)]
    assert (salts[0] == salts[1]) is (first == second)
    assert all(re.fullmatch(rb"[A-Za-z0-9_-]{43}", salt) for salt in salts)
    assert tenant_salt(b"t" * 32, first) != salts[0]


def test_keys_of_one_tenant_share_a_salt_and_others_do_not():
    door = Authenticator(GatewayConfig(api_keys=keys(one="a", two="a", three="b")))
    assert salt_of(door, "one") == salt_of(door, "two")
    assert salt_of(door, "one") != salt_of(door, "three")


def test_gateways_with_the_same_secret_make_the_same_salts_and_without_one_each_its_own(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    shared = [
        Authenticator(GatewayConfig(api_keys=keys(one="a"), salt_secret_file=str(path))) for _ in range(2)
    ]
    alone = [Authenticator(GatewayConfig(api_keys=keys(one="a"))) for _ in range(2)]
    assert salt_of(shared[0], "one") == salt_of(shared[1], "one") == tenant_salt(SECRET, "a")
    assert salt_of(alone[0], "one") != salt_of(alone[1], "one")
    assert shared[0].hash_key(b"prefixes") == shared[1].hash_key(b"prefixes")
    assert alone[0].hash_key(b"prefixes") != alone[1].hash_key(b"prefixes")


def test_processes_of_one_gateway_share_a_secret():
    one, other = (Authenticator(GatewayConfig(api_keys=keys(one="a")), SECRET) for _ in range(2))
    assert salt_of(one, "one") == salt_of(other, "one")
    assert one.hash_key(b"prefixes") == other.hash_key(b"prefixes") != one.hash_key(b"marks")


def test_without_keys_nothing_is_salted():
    assert Authenticator(GatewayConfig()).caller(None).salt is None


def test_a_salt_is_not_shown_with_its_caller():
    door = Authenticator(GatewayConfig(api_keys=keys(one="a")))
    assert salt_of(door, "one").decode() not in repr(door.caller(b"Bearer one"))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_is_sent_the_tenants_salt(stream):
    prompt = "word " * 400
    async with (
        running_engines(1) as engines,
        running_gateway(engines, api_keys=keys(one="a", two="a", three="b")) as gateway,
    ):

        async def cached(key):
            options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            body = orjson.dumps(chat_body(prompt, **options))
            reply = await gateway.fetch(
                "POST", "/v1/chat/completions", body, [(b"authorization", b"Bearer " + key.encode())]
            )
            assert reply.status == 200
            return int(re.findall(rb'"cached_tokens":(\d+)', reply.body)[-1])

        assert await cached("one") == 0
        assert await cached("two") > 100
        assert await cached("three") == 0
        assert await cached("three") > 100

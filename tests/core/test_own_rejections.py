"""Whoever operates a gateway learns what each of its rejections means and which setting changes it."""

import re

from pydantic import BaseModel

from phasewise.core.decision import RejectReason
from phasewise.core.errors import RejectionKind
from phasewise.core.own_rejections import OWN_REJECTIONS
from phasewise.fleet.config import GatewayConfig
from phasewise.fleet.config.gateway import RedisConfig


def test_every_reason_of_the_gateway_is_explained():
    assert set(OWN_REJECTIONS) == {*RejectReason, *RejectionKind}


def test_every_setting_that_is_named_is_one_of_the_gateways_file():
    config = GatewayConfig(redis=RedisConfig())
    named = {
        name for it in OWN_REJECTIONS.values() for name in re.findall(r"gateway\.([a-z_.]*[a-z])", it.fix)
    }
    assert "limits.bodies" in named
    for name in named - {"cache.redis"}:
        part = config
        for key in name.split("."):
            assert isinstance(part, BaseModel)
            part = getattr(part, key)

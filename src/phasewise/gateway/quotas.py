"""Chooses where keys' limits are counted: in this process, or by all gateways together."""

from __future__ import annotations

import logging
from typing import Protocol

from phasewise.adapters.redis_quotas import RedisQuotas
from phasewise.config import GatewayConfig
from phasewise.gateway.process_quotas import ProcessQuotas
from phasewise.gateway.shared_quotas import LEASE_S, SharedQuotas
from phasewise.ports import Quotas

logger = logging.getLogger("phasewise.gateway")


class GatewayQuotas(Quotas, Protocol):
    """Limits as the gateway keeps them: they begin and end with it, and tell how they fare."""

    @property
    def degraded(self) -> bool:
        """Whether the store that should count does not answer."""

    async def start(self) -> None:
        """The gateway is about to serve."""

    async def stop(self) -> None:
        """It has served its last request."""


def build_quotas(config: GatewayConfig) -> GatewayQuotas:
    """The counting that the configuration asks for; nothing is contacted before it is started."""
    if config.redis is not None:
        store = RedisQuotas(config.redis.url, config.redis.key_prefix, LEASE_S)
        return SharedQuotas(store, ProcessQuotas(), config.redis.deadline_s, config.redis.when_down)
    if any(
        limit is not None
        for key in config.api_keys
        for limit in (key.requests_per_minute, key.tokens_per_minute, key.max_concurrent)
    ):
        logger.info(
            "keys' limits are counted by this process alone. hint: with several gateways set gateway.redis"
        )
    return ProcessQuotas()

"""Makes connections to the Redis of a configured address, which is never shown: it may hold a password.

What is said over them, and by when it must be answered, is their users' (redis_quotas.py, redis_line.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from phasewise.errors import ConfigError

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


def redis_connections(url: str, setting: str) -> Callable[[], AbstractConnection]:
    """A way to make bare connections; nothing is contacted. `setting` names where in the file the url stands.

    Raises ConfigError without the package, and for a url that is none.
    """
    try:
        connection, retry, backoff = map(
            import_module, ("redis.asyncio.connection", "redis.asyncio.retry", "redis.backoff")
        )
    except ImportError:
        raise ConfigError(
            f"{setting} is set, but the package redis is not installed",
            hint="pip install 'phasewise[redis]'",
        ) from None
    try:
        options = connection.parse_url(url)
        kind = options.pop("connection_class", connection.Connection)
        for of_pools in ("max_connections", "timeout"):
            options.pop(of_pools, None)
        # Whatever the address says: no timeouts, there is one for all that is done at once; replies in the
        # form that every version of Redis and of the package knows; and no tries of its own, because a
        # request that was counted, with the answer lost, would be counted twice.
        options |= {
            "socket_timeout": None, "protocol": 2, "decode_responses": False,
            "retry": retry.Retry(backoff.NoBackoff(), 0),
        }  # fmt: skip
        kind(**options)
    except (ValueError, TypeError):
        # What is wrong with it is not told.
        raise ConfigError(
            f"{setting}.url is not an address of Redis",
            hint="accepted: redis://HOST:PORT/NUMBER, rediss:// for TLS, unix:///PATH",
        ) from None
    return partial(kind, **options)

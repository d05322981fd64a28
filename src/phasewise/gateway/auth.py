"""Who may ask, and on whose behalf: keys are known by their sha256 only.

Which routes need a key is said in routes.py.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from hashlib import sha256

from phasewise.config import ApiKey, GatewayConfig
from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.salt import salt_secret, tenant_salt
from phasewise.model.limits import NO_LIMITS, Limits
from phasewise.model.request import DEFAULT_MAX_WAIT_S

_SCHEME = b"bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request runs. `salt` keeps its words apart from other tenants' in engines' caches."""

    tenant: str = "default"
    priority: int = 0
    slo_class: str = "default"
    key_id: str = ""
    limits: Limits = NO_LIMITS
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    salt: bytes | None = field(default=None, repr=False)


class Doorkeeper:
    """Checks `Authorization` headers."""

    def __init__(self, config: GatewayConfig) -> None:
        # Found by hash: a lookup's timing tells something of the hash at most, and hashes are no secret.
        secret = salt_secret(config)
        self._callers = {bytes.fromhex(key.sha256): _caller(key, config, secret) for key in config.api_keys}
        self._anyone = Caller(max_wait_s=config.slo_class("default").max_wait_s)
        admin_hash = config.admin_key_sha256
        self._admin_hash = None if admin_hash is None else bytes.fromhex(admin_hash)

    def caller(self, authorization: bytes | None) -> Caller:
        """Whose key this is; without configured keys everyone may ask."""
        if not self._callers:
            return self._anyone
        caller = self._callers.get(_key_hash(authorization))
        if caller is None:
            raise RequestRefused(
                RefusalKind.UNAUTHENTICATED,
                "no known API key was given" if authorization is None else "this API key is not known",
                hint="send it as Authorization: Bearer KEY",
            )
        return caller

    def check_admin(self, authorization: bytes | None) -> None:
        """Refuse whoever does not hold the admin key."""
        if self._admin_hash is None:
            raise RequestRefused(
                RefusalKind.FORBIDDEN,
                "this gateway has no admin key, so its admin routes are closed",
                hint="set gateway.admin_key_sha256 to the sha256 of a key of your choice",
            )
        if not hmac.compare_digest(_key_hash(authorization), self._admin_hash):
            raise RequestRefused(
                RefusalKind.UNAUTHENTICATED,
                "the admin key is missing or wrong",
                hint="send it as Authorization: Bearer KEY",
            )


def _caller(key: ApiKey, config: GatewayConfig, secret: bytes) -> Caller:
    limits = Limits(key.requests_per_minute, key.tokens_per_minute, key.max_concurrent)
    return Caller(
        tenant=key.tenant,
        priority=key.priority,
        slo_class=key.slo_class,
        key_id=key.sha256[:16],
        limits=limits,
        max_wait_s=config.slo_class(key.slo_class).max_wait_s,
        salt=tenant_salt(secret, key.tenant),
    )


def key_sha256(key: str) -> str:
    """The form in which configuration holds a key."""
    return sha256(key.encode()).hexdigest()


def _key_hash(authorization: bytes | None) -> bytes:
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return b""
    return sha256(authorization[len(_SCHEME) :].strip()).digest()

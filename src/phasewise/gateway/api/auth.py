"""Authentication by API keys, which the gateway knows only by their sha256."""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.request import DEFAULT_MAX_WAIT_S, NO_LIMITS, Limits
from phasewise.fleet.config import GatewayConfig, load_secret

# --- Keeps tenants apart in the engines' prefix cache: each tenant's requests carry its own salt.
#
# Without it an early first token would show a tenant that another one had sent the same text.

SECRET_BYTES = 32


def tenant_salt(secret: bytes, tenant: str) -> bytes:
    """A tenant's salt, which its name alone does not reveal: 43 letters, digits, dashes and underscores."""
    return base64.urlsafe_b64encode(hmac.digest(secret, tenant.encode(), "sha256")).rstrip(b"=")


def salted(body: bytes, salt: bytes | None) -> bytes:
    """The body, a non-empty JSON object, with the salt as its last field; None adds nothing."""
    if salt is None:
        return body
    # Spliced in before the closing brace, so that a long prompt is not serialized again.
    before = memoryview(body.rstrip())[:-1]
    return b"".join((before, b',"cache_salt":"%b"}' % salt))


_SCHEME = b"bearer "
NO_PRIORITY = -(10**6)
"""Below that of every key: where all have one priority, none has the lowest."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request. `salt` keeps its prompts apart from other tenants' in engines' caches."""

    tenant: str = "default"
    priority: int = 0
    weight: float = 1.0
    slo_class: str = "default"
    key_id: str = ""
    limits: Limits = NO_LIMITS
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    salt: bytes | None = field(default=None, repr=False)


class Authenticator:
    """Checks the keys of requests.

    Salts are derived from the bytes of the configured file, else from those that this gateway's processes
    share, else from random ones.
    """

    def __init__(self, config: GatewayConfig, shared_secret: bytes | None = None) -> None:
        if config.salt_secret_file is not None:
            self._secret = load_secret(Path(config.salt_secret_file))
        else:
            self._secret = shared_secret or secrets.token_bytes(SECRET_BYTES)
        self.set_keys(config)

    def hash_key(self, purpose: bytes) -> bytes:
        """A key for hashes of prompts: the same in all processes and gateways that have the same secret."""
        # No tenant's name begins with a zero, so that no salt is a key.
        return hmac.digest(self._secret, b"\0" + purpose, "sha256")

    def set_keys(self, config: GatewayConfig) -> None:
        """From now on these keys; tenants keep their salts."""
        self._config = config
        # Looked up by hash: the timing reveals at most something about the hash, which is not secret.
        self._keys = {key.sha256: key for key in config.api_keys}
        # Of keys that were used: of ten thousand keys only a few are, while all are loaded in one go.
        self._callers: dict[bytes, Caller] = {}
        self._anyone = Caller(max_wait_s=config.slo_class("default").max_wait_s)
        priorities = {key.priority for key in config.api_keys}
        self.lowest_priority = min(priorities) if len(priorities) > 1 else NO_PRIORITY
        admin, metrics = config.admin_key_sha256, config.metrics_key_sha256
        self._admin_hash = None if admin is None else bytes.fromhex(admin)
        self._metrics_hash = None if metrics is None else bytes.fromhex(metrics)

    def caller(self, authorization: bytes | None, x_api_key: bytes | None = None) -> Caller:
        """The caller with this key; without configured keys every request is allowed.

        Anthropic's clients send it as `x-api-key`, which counts where there is no `Authorization`.
        """
        if not self._keys:
            return self._anyone
        if authorization is None and x_api_key is not None:
            authorization = _SCHEME + x_api_key
        digest = _key_hash(authorization)
        caller = self._callers.get(digest)
        if caller is None:
            key = self._keys.get(digest.hex())
            if key is None:
                raise RequestRejected(
                    RejectionKind.UNAUTHENTICATED,
                    "no known API key was given" if authorization is None else "this API key is unknown",
                    hint="send it as Authorization: Bearer KEY, or as x-api-key: KEY",
                )
            caller = self._callers[digest] = Caller(
                tenant=key.tenant,
                priority=key.priority,
                weight=key.weight,
                slo_class=key.slo_class,
                key_id=key.sha256[:16],
                limits=Limits(key.requests_per_minute, key.tokens_per_minute, key.max_concurrent),
                max_wait_s=self._config.slo_class(key.slo_class).max_wait_s,
                salt=tenant_salt(self._secret, key.tenant),
            )
        return caller

    def check_metrics(self, authorization: bytes | None) -> None:
        """Reject requests without the key for metrics, if there is one; the admin key will do too."""
        if self._metrics_hash is None:
            return
        if not hmac.compare_digest(_key_hash(authorization), self._metrics_hash):
            self.check_admin(authorization)

    def require_admin_key(self) -> None:
        """Reject every request if there is no admin key."""
        if self._admin_hash is None:
            raise RequestRejected(
                RejectionKind.FORBIDDEN,
                "this gateway has no admin key, so its admin routes are closed",
                hint="set gateway.admin_key_sha256 to the sha256 of a key of your choice",
            )

    def check_admin(self, authorization: bytes | None) -> None:
        """Reject requests without the admin key."""
        self.require_admin_key()
        if not hmac.compare_digest(_key_hash(authorization), self._admin_hash or b""):
            raise RequestRejected(
                RejectionKind.UNAUTHENTICATED,
                "the admin key is missing or wrong",
                hint="send it as Authorization: Bearer KEY",
            )


def key_sha256(key: str) -> str:
    """The form in which configuration holds a key."""
    return sha256(key.encode()).hexdigest()


def _key_hash(authorization: bytes | None) -> bytes:
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return b""
    return sha256(authorization[len(_SCHEME) :].strip()).digest()

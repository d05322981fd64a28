"""Keeps tenants apart in the engines' prefix cache: each tenant's requests carry a salt of its own.

Without one a tenant could tell, by a first token that came early, that another had sent the same words.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from pathlib import Path

from phasewise.config import GatewayConfig, load_secret

SECRET_BYTES = 32


def salt_secret(config: GatewayConfig) -> bytes:
    """What salts are made from: the file's bytes, or new ones, which other gateways do not have."""
    if config.salt_secret_file is None:
        return secrets.token_bytes(SECRET_BYTES)
    return load_secret(Path(config.salt_secret_file))


def tenant_salt(secret: bytes, tenant: str) -> bytes:
    """A tenant's salt, which its name alone does not tell: 43 letters, digits, dashes and underscores."""
    return base64.urlsafe_b64encode(hmac.digest(secret, tenant.encode(), "sha256")).rstrip(b"=")


def salted(body: bytes, salt: bytes | None) -> bytes:
    """The body, a JSON object with some field in it, with the salt as its last field; None adds nothing."""
    if salt is None:
        return body
    # Spliced in before the closing brace: a long prompt is not written out anew for one small field.
    return body.rstrip()[:-1] + b',"cache_salt":"%b"}' % salt

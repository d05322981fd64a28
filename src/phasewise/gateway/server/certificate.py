"""The certificate that the gateway shows. It can be replaced while connections are open."""

from __future__ import annotations

import ssl

from phasewise.core.errors import ConfigError
from phasewise.fleet.config import TlsConfig


class Certificate:
    """What new connections are shown; None: what the server was started with."""

    def __init__(self) -> None:
        self.replacement: ssl.SSLContext | None = None

    def attach(self, server: ssl.SSLContext) -> None:
        """Let a server ask here at the start of each connection."""
        # Another certificate in the same context would be one more of them if its key is of another kind.
        server.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _server: ssl.SSLContext) -> None:
        if self.replacement is not None:
            connection.context = self.replacement


def certificate_of(tls: TlsConfig) -> ssl.SSLContext:
    """The certificate of a configuration; raises ConfigError if it cannot be used."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        reason = error.strerror or "they are not a certificate and its key"
        # The setting may hold the key itself instead of its path.
        pasted = "\n" in tls.certificate + tls.key
        which = "what should be two paths" if pasted else f"{tls.certificate} and {tls.key}"
        raise ConfigError(
            f"gateway.tls: {which} cannot be used ({reason})",
            hint="give two PEM files: the certificate with its chain, and its key without a password",
        ) from None
    return context

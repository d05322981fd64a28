"""The keys and certificates that engines ask for, from their files."""

from __future__ import annotations

import ssl
from pathlib import Path

from phasewise.clients.http_client import Access
from phasewise.clients.key_file import read_key
from phasewise.core.errors import ConfigError
from phasewise.fleet.config.gateway import WorkerConfig, WorkerTls


def access_of(config: WorkerConfig) -> Access:
    """What a worker asks of its clients, read from its files; raises ConfigError."""
    file = config.api_key_file
    key = None if file is None else read_key(Path(file), f"the key of worker {config.name}")
    return Access(key, None if config.tls is None else _tls(config.tls, f"workers.{config.name}.tls"))


def _tls(config: WorkerTls, named: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.certificate is not None:
            context.load_cert_chain(config.certificate, config.key, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{named} cannot be used ({error.strerror or 'these are not certificates'})",
            hint="give PEM files: ca, certificate with its chain, and its key without a password",
        ) from None
    return context

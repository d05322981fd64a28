"""Every error phasewise raises on purpose, as one tree.

PhasewiseError
├── ConfigError              a file or a variable is not usable
│   └── UsageError           options or arguments are not accepted; a command exits with 2
├── EngineError
│   ├── EngineNotInstalled   no engine environment was found
│   ├── EngineInstallFailed  a step of the installation failed
│   ├── EngineStartFailed    an engine process did not become ready
│   └── EngineUnreachable    nothing answers at the engine's address
├── FleetError               a fleet on this machine cannot be started, found or stopped
├── RequestRejected          a client's request is not accepted: its fields, its key, its size or its address
├── UpstreamError            a worker broke off the exchange with the gateway
├── StoreUnreachable         the store that gateways share does not answer
│   └── StoreRejected        the store answers, but rejects the operation
└── MeasurementError         too little was observed for a result

An error says what happened and where; `hint` says what to do next. Neither contains prompts or keys.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Any


class PhasewiseError(Exception):
    """Base of all errors raised on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. hint: {self.hint}" if self.hint else self.message


class ConfigError(PhasewiseError):
    """A file or a variable is not usable."""


class UsageError(ConfigError):
    """Options or arguments are not accepted, whatever the server is; a command exits with 2."""


class EngineError(PhasewiseError):
    """Base of errors that concern an engine as a whole."""


class EngineNotInstalled(EngineError):
    """No engine environment was found."""


class EngineInstallFailed(EngineError):
    """A step of the installation failed."""


class EngineStartFailed(EngineError):
    """An engine process did not become ready."""


class EngineUnreachable(EngineError):
    """Nothing answers at the engine's address."""


class FleetError(PhasewiseError):
    """A fleet on this machine cannot be started, found or stopped."""


class RejectionKind(StrEnum):
    """Why a request was not accepted."""

    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_LARGE = "too_large"
    BODIES_FULL = "bodies_full"
    BODY_TIMEOUT = "body_timeout"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    HEAD_TOO_LARGE = "head_too_large"
    HEAD_TIMEOUT = "head_timeout"
    CACHE_UNAVAILABLE = "cache_unavailable"
    OVERLOADED = "overloaded"
    BAD_CONFIG = "bad_config"
    QUARANTINED = "quarantined"


class RequestRejected(PhasewiseError):
    """A client's request is not accepted; `param` names the invalid field, never its value."""

    def __init__(
        self, kind: RejectionKind, message: str, *, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.param = param

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process."""
        return partial(RequestRejected, self.kind, self.message, param=self.param, hint=self.hint), ()


class FailureKind(StrEnum):
    """How an exchange with a worker broke off."""

    CONNECTION_REFUSED = "connection_refused"
    CLOSED = "closed"
    TIMED_OUT = "timed_out"
    PROTOCOL = "protocol"
    SERVER_ERROR = "server_error"
    NO_SOCKET = "no_socket"
    """This process could not open a connection; that says nothing about the worker."""
    KV_TRANSFER = "kv_transfer"
    """The worker did not get the KV that another worker computed for it; both may be healthy."""
    TOO_LATE = "too_late"
    """This process asked for the KV after its deadline; that says nothing about any worker."""
    NOT_CONTINUED = "not_continued"
    """The worker cannot continue another worker's broken answer; it is healthy."""


class UpstreamError(PhasewiseError):
    """A worker broke off the exchange with the gateway."""

    def __init__(self, kind: FailureKind, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class StoreUnreachable(PhasewiseError):
    """The store that gateways share does not answer."""


class StoreRejected(StoreUnreachable):
    """The store answers, but rejects the operation: it is full or read-only."""


class EmbedderUnreachable(PhasewiseError):
    """The embedding model does not answer."""


class EmbedderBusy(EmbedderUnreachable):
    """The embedder answers, but is too busy to embed in time."""


class EmbedderRejected(EmbedderUnreachable):
    """The embedder answers, but rejects the text, most likely because it is too long."""


class MeasurementError(PhasewiseError):
    """Too little was observed for a result."""

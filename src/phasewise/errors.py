"""Every error phasewise raises on purpose, as one tree.

PhasewiseError
├── ConfigError              a file, an option or a variable is not usable
├── EngineError
│   ├── EngineNotInstalled   no engine environment was found
│   ├── EngineInstallFailed  a step of the installation failed
│   ├── EngineStartFailed    an engine process did not become ready
│   └── EngineUnreachable    nothing answers at the engine's address
├── FleetError               a fleet on this machine cannot be started, found or stopped
├── RequestRefused           a client's request is not taken in: its fields, its key, its size or its address
├── UpstreamError            a worker broke the conversation it was having with us
├── StoreUnreachable         the store that gateways share does not answer
│   └── StoreRefused         it answers, but will not do what it is asked
└── MeasurementError         too little was seen to say anything true

An error says what happened and where; `hint` says what to do next. Prompts and keys never stand in either.
HTTP status codes are not known here: gateway/http_errors.py maps errors to them.
"""

from __future__ import annotations

from enum import StrEnum


class PhasewiseError(Exception):
    """Base of all errors raised on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. hint: {self.hint}" if self.hint else self.message


class ConfigError(PhasewiseError):
    """A file, an option or a variable is not usable."""


class EngineError(PhasewiseError):
    """Base of what can go wrong with an engine as a whole."""


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


class RefusalKind(StrEnum):
    """Why a request was not taken in."""

    BAD_REQUEST = "bad_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    TOO_LARGE = "too_large"
    BODY_TIMEOUT = "body_timeout"
    HEAD_TOO_LARGE = "head_too_large"
    HEAD_TIMEOUT = "head_timeout"
    CACHE_UNAVAILABLE = "cache_unavailable"


class RequestRefused(PhasewiseError):
    """A client's request is not taken in; `param` names the field at fault, never its value."""

    def __init__(
        self, kind: RefusalKind, message: str, *, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind
        self.param = param


class FailureKind(StrEnum):
    """How a conversation with a worker broke."""

    REFUSED = "refused"
    CLOSED = "closed"
    TIMED_OUT = "timed_out"
    PROTOCOL = "protocol"
    SERVER_ERROR = "server_error"
    NO_SOCKET = "no_socket"
    """This process could open no connection: nothing is known of the worker."""
    HAND_OVER = "hand_over"
    """The worker did not get the KV that another had computed for it; both may be well."""
    TOO_LATE = "too_late"
    """This process had not asked for KV when the time to do so was over: nothing is known of any worker."""
    NOT_CONTINUED = "not_continued"
    """The worker cannot go on with another's broken answer: nothing is amiss with it."""


class UpstreamError(PhasewiseError):
    """A worker broke the conversation it was having with us."""

    def __init__(self, kind: FailureKind, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class StoreUnreachable(PhasewiseError):
    """The store that gateways share does not answer."""


class StoreRefused(StoreUnreachable):
    """It answers, but will not do what it is asked: it is full, or may only be read."""


class EmbedderUnreachable(PhasewiseError):
    """Whoever turns questions into vectors does not answer."""


class EmbedderBusy(EmbedderUnreachable):
    """It answers, but has more to do than it could in time."""


class EmbedderRefused(EmbedderUnreachable):
    """It answers, but takes no such text: it is too long for it, most likely."""


class MeasurementError(PhasewiseError):
    """Too little was seen to say anything true."""

"""A request to send and what may come back, and the two tenants in whose names requests are sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

MODEL = "fake-model"
CANARIES = {"a": "canary-a-7f3e52", "b": "canary-b-91cd08"}
"""Words that only this tenant says, in every prompt and in its key."""
KEYS = {tenant: f"key-{canary}" for tenant, canary in CANARIES.items()}
ADMIN_KEY = "key-admin-canary-5be1"
OTHER = {"a": "b", "b": "a"}

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A well-framed request; `accepted` are the statuses it may have, none for any that is documented."""

    kind: str
    body: bytes
    path: str = "/v1/chat/completions"
    method: str = "POST"
    tenant: str | None = None
    headers: Headers = ()
    accepted: tuple[int, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether it has to be served."""
        return self.accepted == (200,)


@dataclass(frozen=True, slots=True)
class RawCase:
    """Bytes of a connection of their own; `accepted` as of a Case, 0 being a close without a word.

    They may be sent `slowly`, byte by byte. The sender may close its side after them.
    """

    kind: str
    data: bytes
    accepted: tuple[int, ...] = ()
    slowly: bool = False
    half_closes: bool = False


CLOSED_TO_ALL = ("admin_by_client", "kv_control", "too_deep", "not_json")
"""Kinds of cases that are rejected where nobody has a key too: elsewhere it is the engine that judges."""
AnyCase = TypeVar("AnyCase", Case, RawCase)


def without_keys(case: AnyCase) -> AnyCase:
    """The same for a gateway where nobody has a key: what may come back, and by which name it is reached."""
    if isinstance(case, RawCase):
        data = case.data.replace(b"host: x\r\n", b"host: localhost\r\n")
        return replace(case, data=data, accepted=tuple(status for status in case.accepted if status != 401))
    is_judged = case.is_valid or case.kind in CLOSED_TO_ALL
    return replace(case, tenant=None, accepted=case.accepted if is_judged else ())


def key_header(key: str) -> tuple[bytes, bytes]:
    """How a client shows its key."""
    return b"authorization", b"Bearer " + key.encode()

"""The cache headers of requests and responses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from phasewise.core.caching import CacheNote, CacheResult
from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.core.value import value
from phasewise.fleet.config.gateway import ACCEPTED_BY_PATTERN, NAME_PATTERN
from phasewise.gateway.server.client import Headers
from phasewise.semantic_match.identity import DEFAULT_NAMESPACE

CACHE_CONTROL = b"cache-control"
NAMESPACE = b"x-phasewise-cache-namespace"
TAGS = b"x-phasewise-cache-tags"
CACHE_STATUS = b"cache-status"
"""RFC 9211."""
AGE = b"age"
MOST_TAGS = 16

_ASKED = (CACHE_CONTROL, NAMESPACE, TAGS)

_NAME = re.compile(NAME_PATTERN)
_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")
_DETAIL = {
    CacheResult.HIT_EXACT: "exact",
    CacheResult.HIT_ALIAS: "alias",
    CacheResult.HIT_SEMANTIC: "semantic",
}


@value
class CacheWishes:
    """What a client asks of the cache: whether to read and store answers, and in which namespace.

    `no-store` forbids both; `no-cache` asks for a new answer, which may be stored.
    """

    reads: bool = True
    keeps: bool = True
    namespace: str = DEFAULT_NAMESPACE
    tags: tuple[str, ...] = ()

    @property
    def opted_out(self) -> bool:
        """Whether the client bypasses the cache."""
        return not self.reads and not self.keeps


USUAL = CacheWishes()


def cache_wishes(headers: Mapping[bytes, bytes]) -> CacheWishes:
    """Read a request's headers; raises RequestRejected for an invalid name."""
    control, namespace, tags = headers.get(CACHE_CONTROL), headers.get(NAMESPACE), headers.get(TAGS)
    if control is None and namespace is None and tags is None:
        return USUAL
    wanted = {part.strip().lower() for part in (control or b"").split(b",")}
    keeps = b"no-store" not in wanted
    return CacheWishes(
        reads=keeps and wanted.isdisjoint({b"no-cache", b"max-age=0"}),
        keeps=keeps,
        namespace=DEFAULT_NAMESPACE if namespace is None else _name(namespace, NAMESPACE),
        tags=_tags(tags),
    )


def with_all_lines(headers: dict[bytes, bytes], lines: Headers) -> dict[bytes, bytes]:
    """The headers, with repeated cache headers joined into a list: proxies may add their own.

    Two namespaces become one invalid name.
    """
    if len(headers) == len(lines):
        return headers
    every = {
        name: b",".join(value for key, value in lines if key == name) for name in _ASKED if name in headers
    }
    return {**headers, **every}


def _tags(value: bytes | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = [part.strip() for part in value.split(b",")]
    if len(names) > MOST_TAGS:
        raise _bad(TAGS, f"names more than {MOST_TAGS} tags")
    return tuple(sorted({_name(name, TAGS) for name in names if name}))


def _name(value: bytes, header: bytes) -> str:
    name = value.decode("latin-1")
    if not _NAME.fullmatch(name):
        raise _bad(header, "holds an invalid name")
    return name


def _bad(header: bytes, what: str) -> RequestRejected:
    name = header.decode()
    hint = ACCEPTED_BY_PATTERN[NAME_PATTERN]
    return RequestRejected(RejectionKind.BAD_REQUEST, f"{name} {what}", param=name, hint=hint)


def cache_headers(note: CacheNote) -> Headers:
    """The response headers that report the cache result."""
    headers = [(CACHE_STATUS, _status(note).encode())]
    if note.result.served and note.age_s is not None:
        headers.append((AGE, b"%d" % max(0, int(note.age_s))))
    return headers


def without_cache_headers(headers: Headers) -> Headers:
    """The headers without those that report the cache result."""
    return [(name, value) for name, value in headers if name not in (CACHE_STATUS, AGE)]


def _status(note: CacheNote) -> str:
    if detail := _DETAIL.get(note.result):
        return f"phasewise; hit; detail={detail}"
    if note.result is CacheResult.JOINED:
        return "phasewise; fwd=miss; collapsed; detail=joined"
    status = "phasewise; fwd=bypass" if note.result is CacheResult.BYPASS else "phasewise; fwd=miss"
    named = note.reason if note.result in {CacheResult.BYPASS, CacheResult.MISS} else note.result
    # All reasons are tokens; any other text would break the header.
    return f"{status}; detail={named}" if named is not None and _TOKEN.fullmatch(named) else status

"""What clients ask of the cache in their request's headers, and what they are told of it in the reply's.

Pure functions; what is done about either is the desk's (answer_cache.py) and found_answers.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from phasewise.caching.identity import DEFAULT_NAMESPACE
from phasewise.config.base import ACCEPTED_BY_PATTERN, NAME_PATTERN
from phasewise.errors import RefusalKind, RequestRefused
from phasewise.gateway.asgi import Headers
from phasewise.model.caching import CacheNote, CacheResult
from phasewise.model.noun import noun

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
    CacheResult.HIT_SEMANTIC: "semantic",
}


@noun
class CacheWishes:
    """What a client asks of the cache: whether to read and keep answers, and where.

    `no-store` wants neither, `no-cache` wants a new answer, which may be kept.
    """

    reads: bool = True
    keeps: bool = True
    namespace: str = DEFAULT_NAMESPACE
    tags: tuple[str, ...] = ()

    @property
    def opted_out(self) -> bool:
        """Whether the client wants nothing of the cache."""
        return not self.reads and not self.keeps


_USUAL = CacheWishes()


def cache_wishes(headers: Mapping[bytes, bytes]) -> CacheWishes:
    """Read a request's headers; raises RequestRefused where a name is none."""
    control, namespace, tags = headers.get(CACHE_CONTROL), headers.get(NAMESPACE), headers.get(TAGS)
    if control is None and namespace is None and tags is None:
        return _USUAL
    wanted = {part.strip().lower() for part in (control or b"").split(b",")}
    keeps = b"no-store" not in wanted
    return CacheWishes(
        reads=keeps and wanted.isdisjoint({b"no-cache", b"max-age=0"}),
        keeps=keeps,
        namespace=DEFAULT_NAMESPACE if namespace is None else _name(namespace, NAMESPACE),
        tags=_tags(tags),
    )


def with_all_lines(headers: dict[bytes, bytes], lines: Headers) -> dict[bytes, bytes]:
    """The same headers, those of the cache as a list where they came in several lines: proxies add their own.

    Two namespaces make one that is no name.
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
        raise _bad(header, "holds what is no name")
    return name


def _bad(header: bytes, what: str) -> RequestRefused:
    name = header.decode()
    hint = ACCEPTED_BY_PATTERN[NAME_PATTERN]
    return RequestRefused(RefusalKind.BAD_REQUEST, f"{name} {what}", param=name, hint=hint)


def cache_headers(note: CacheNote) -> Headers:
    """The headers that tell what a request had of the cache."""
    told = [(CACHE_STATUS, _status(note).encode())]
    if note.result.served and note.age_s is not None:
        told.append((AGE, b"%d" % max(0, int(note.age_s))))
    return told


def without_cache_headers(headers: Headers) -> Headers:
    """The same headers before anything was told of the cache."""
    return [(name, value) for name, value in headers if name not in (CACHE_STATUS, AGE)]


def _status(note: CacheNote) -> str:
    if detail := _DETAIL.get(note.result):
        return f"phasewise; hit; detail={detail}"
    if note.result is CacheResult.JOINED:
        return "phasewise; fwd=miss; collapsed; detail=joined"
    if note.result is CacheResult.BYPASS:
        return f"phasewise; fwd=bypass{_detail(note.reason)}"
    named = note.reason if note.result is CacheResult.MISS else note.result
    return f"phasewise; fwd=miss{_detail(named)}"


def _detail(named: str | None) -> str:
    # A reason is one of ours and a token by its look; one that is none would break the header.
    return f"; detail={named}" if named is not None and _TOKEN.fullmatch(named) else ""

"""All work that grows with the size of a body. It changes no state, so that any process can do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phasewise.core.prefixes import BLOCK_BYTES
from phasewise.core.request import Endpoint
from phasewise.core.value import value
from phasewise.gateway.answer_cache.headers import CacheWishes
from phasewise.gateway.answer_cache.lookup import CacheEntrance, CacheLookup
from phasewise.gateway.api.fields import Parsed, parse_body
from phasewise.gateway.api.forwarded import parse_json
from phasewise.gateway.api.prompt_prefix import PrefixHashing
from phasewise.gateway.api.reading_times import Weight

# Looking up a member of an enum is slow.
_FORWARDED = Endpoint.FORWARDED


@dataclass(slots=True)
class Read:
    """A parsed body, its prefix hashes, its conversation, and its cache look-up, if there is a cache."""

    parsed: Parsed
    hashes: tuple[int, ...] = ()
    conversation: int = 0
    lookup: CacheLookup | None = None


@value
class BodyReader:
    """Reads bodies.

    `hashing` is None if no policy uses hashes: they cost a pass over the prompt. `entrance` is None without
    an answer cache. With `passes_unknown`, engines get fields that the gateway does not know, even if it
    `lends_rights`.
    """

    hashing: PrefixHashing | None = None
    entrance: CacheEntrance | None = None
    lends_rights: bool = True
    passes_unknown: bool = False

    def read(
        self,
        endpoint: Endpoint,
        body: bytes,
        wishes: CacheWishes,
        tenant: str,
        salt: bytes | None,
        judge: Callable[[Weight], None] | None = None,
    ) -> Read:
        """Read a body; raises RequestRejected, and what `judge` raises."""
        lends_rights, passes_unknown = self.lends_rights, self.passes_unknown
        if endpoint is _FORWARDED:
            return Read(parse_json(body, lends_rights=lends_rights, judge=judge))
        parsed = parse_body(
            endpoint, body, lends_rights=lends_rights, passes_unknown=passes_unknown, judge=judge
        )
        found = Read(parsed)
        if self.entrance is not None and endpoint.is_completion:
            found.lookup = self.entrance.enter(endpoint, found.parsed.fields, wishes, tenant)
        if self.hashing is not None and len(body) >= BLOCK_BYTES:
            fields = found.parsed.fields
            found.hashes = self.hashing.hashes(endpoint, fields, salt)
            found.conversation = self.hashing.conversation(endpoint, fields, found.hashes)
        return found

"""What a request's head must show: a host of this gateway, an allowed web page, a body that can be read.

A gateway without keys trusts its machine. But any web page can make a browser on it send requests: it cannot
keep its name out of `origin`, nor, if it lets that name lead here, out of `host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from phasewise.core.errors import RejectionKind, RequestRejected
from phasewise.fleet.config import LOOPBACK_HOSTS, GatewayConfig
from phasewise.gateway.server.client import Direct, Headers, Scope, header

Head = Mapping[bytes, bytes]

ANY = "*"
NOT_REPEATED = frozenset(
    {b"host", b"origin", b"authorization", b"x-api-key", b"transfer-encoding", b"content-encoding"}
)
PREFLIGHT_KEPT_S = 600
ALLOWED_HEADERS = b"authorization, x-api-key, content-type, anthropic-version"

_AUTHORITY = re.compile(rb"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class AllowedSites:
    """Which hosts may be asked for, and which web pages may ask. IPv6 addresses have brackets."""

    hosts: frozenset[bytes]
    origins: frozenset[bytes]
    any_origin: bool
    any_host: bool

    @classmethod
    def of(cls, config: GatewayConfig) -> AllowedSites:
        """From the configuration. Where there are keys, a key shows more than the name of the host."""
        names = LOOPBACK_HOSTS | {config.host, *config.trusted_hosts}
        return cls(
            hosts=frozenset((f"[{name}]" if ":" in name else name).lower().encode() for name in names),
            origins=frozenset(origin.lower().encode() for origin in config.cors),
            any_origin=ANY in config.cors,
            any_host=bool(config.api_keys),
        )

    def check(self, method: bytes, head: Head) -> Headers:
        """The headers that let an allowed page read the answer; raises RequestRejected for a foreign one."""
        host, origin = head.get(b"host", b"").lower(), head.get(b"origin")
        if b"host" in head and not self.any_host and not self._is_own(host):
            raise RequestRejected(
                RejectionKind.FORBIDDEN,
                "the header host names another machine, and this gateway asks for no key",
                hint="add that name to gateway.trusted_hosts, or give the gateway api_keys",
            )
        if origin is not None and (self.any_origin or origin.lower() in self.origins):
            allowed = b"*" if self.any_origin else origin
            return (
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", b"x-request-id, *"),
                (b"vary", b"origin"),
            )
        if _is_cross_site(method, head) and not self.any_origin:
            raise _foreign_page()
        if origin is not None:
            scheme, _, asking = origin.lower().partition(b"://")
            own = scheme in {b"http", b"https"} and (asking == host or self._is_own(asking))
            if not own or is_preflight(method, head):
                raise _foreign_page()
        return ()

    def _is_own(self, authority: bytes) -> bool:
        found = _AUTHORITY.fullmatch(authority)
        return found is not None and found[1] in self.hosts


def is_preflight(method: bytes, head: Head) -> bool:
    """Whether a browser asks if a page may send a request."""
    return method == b"OPTIONS" and b"access-control-request-method" in head


async def answer_preflight(scope: Scope, direct: Direct) -> None:
    """Let the page send what it asked for; AllowedSites has checked its origin."""
    asked = header(scope, b"access-control-request-headers")
    headers = (
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-allow-headers", ALLOWED_HEADERS if not asked else ALLOWED_HEADERS + b", " + asked),
        (b"access-control-max-age", b"%d" % PREFLIGHT_KEPT_S),
    )
    direct.respond(200, headers, b"")


def _is_cross_site(method: bytes, head: Head) -> bool:
    # Following a link sends nothing that the page chose but the address, and the page reads nothing.
    follows_link = method == b"GET" and head.get(b"sec-fetch-dest") == b"document"
    return head.get(b"sec-fetch-site") == b"cross-site" and not follows_link


def _foreign_page() -> RequestRejected:
    return RequestRejected(
        RejectionKind.FORBIDDEN,
        "a web page of another origin asks, and gateway.cors does not allow it",
        hint="add the page's origin to gateway.cors, as in cors: [https://chat.example]",
    )


def check_repeated(headers: Headers) -> None:
    """Reject a header that is given twice if the gateway or the framing of the body depends on it."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in NOT_REPEATED:
            raise RequestRejected(RejectionKind.BAD_REQUEST, f"the header {name.decode()} is given twice")
        seen.add(name)


def check_body_form(path: bytes, head: Head) -> None:
    """Reject the body of a POST that is no JSON, as vLLM does, or is compressed."""
    if head.get(b"content-encoding", b"identity").lower() != b"identity":
        raise RequestRejected(
            RejectionKind.UNSUPPORTED_ENCODING, "a compressed body is not taken", hint="send it as it is"
        )
    kind = head.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == b"application/json":
        return
    has_body = b"transfer-encoding" in head or head.get(b"content-length", b"").strip(b"0")
    takes_form = path.startswith(b"/v1/audio/")
    if has_body and not (takes_form and kind == b"multipart/form-data"):
        taken = "application/json or multipart/form-data" if takes_form else "application/json"
        raise RequestRejected(
            RejectionKind.BAD_REQUEST,
            f"the body's type is not {taken}",
            hint=f"send the header content-type: {taken}",
        )

"""Tells requests that a web page made a browser send from those of programs on this machine.

A gateway on loopback may ask for no key, because only this machine reaches it; but a browser does what any
page tells it to. What it cannot do is keep the page's name out of `host` and `origin`. Keys are auth.py's.
"""

from __future__ import annotations

import re

from phasewise.config import LOOPBACK_HOSTS
from phasewise.errors import RefusalKind, RequestRefused

_NAMES = "|".join(re.escape(f"[{name}]" if ":" in name else name) for name in sorted(LOOPBACK_HOSTS))
_HOST = re.compile(rf"(?:{_NAMES})(?::\d+)?".encode(), re.IGNORECASE)
_ORIGIN = re.compile(rb"https?://" + _HOST.pattern, re.IGNORECASE)


def check_same_machine(host: bytes | None, origin: bytes | None) -> None:
    """Refuse a request whose headers name another machine than this one."""
    if host is not None and not _HOST.fullmatch(host):
        raise _foreign("host")
    if origin is not None and not _ORIGIN.fullmatch(origin):
        raise _foreign("origin")


def _foreign(header: str) -> RequestRefused:
    return RequestRefused(
        RefusalKind.FORBIDDEN,
        f"the header {header} names another machine, and this gateway asks for no key",
        hint="ask for 127.0.0.1 or localhost, or give the gateway api_keys",
    )

"""How many files and sockets this process may hold open. Who needs many says so at its start."""

from __future__ import annotations

import resource
from contextlib import suppress

ENOUGH = 65_536
"""What is asked for where the system sets no bound."""


def allow_many_streams() -> None:
    """Let this process hold as many sockets open as the system permits: a stream takes one or two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else ENOUGH
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

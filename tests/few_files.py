"""A process that has no file descriptor left, for as long as a test wants to see what comes of that."""

from __future__ import annotations

import contextlib
import os
import resource


@contextlib.contextmanager
def no_more_files():
    """Within the block nothing more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in held:
            os.close(number)
